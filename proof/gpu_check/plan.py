"""Plan of the GPU check: its parts, most valuable first, and the expected time of each, by the size of the machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from pydantic import TypeAdapter

from scaleproof.proof.gpu_check import scenarios
from scaleproof.proof.gpu_check.scenarios import Fields, Trainings
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario.schema import AnyStrategy
from scaleproof.validator.train.capabilities import PRECISIONS

CALIBRATE: Final = "calibrate"
DEVICE: Final = "device"
FIRST: Final = "reconcile first models"
FAMILIES: Final = "reconcile every family"
SHARED: Final = "measure on shared devices"
REST: Final = "reconcile the rest"
PAGE: Final = "page"
# The time limit is this much more than the expected time, in whole steps.
_MARGIN: Final = 1.25
_STEP_S: Final = 300.0
_MINUTE_S: Final = 60.0
_EIGHT_BITS: Final = "fp8"
_STRATEGY: Final[TypeAdapter[Strategy]] = TypeAdapter(AnyStrategy)


class ExpectedTimes(NamedTuple):
    """Expected seconds: of calibrating; of scoring kernels and fitting a device; of a scenario, and in addition of each of its
    ranks and of its verification; of the pages."""

    calibrate_s: float
    fit_s: float
    scenario_s: float
    rank_s: float
    verify_s: float
    page_s: float


# Sums of what each part consists of, since nothing of this has been measured on GPUs yet. Calibrating: probes of two minutes,
# and a minute in which their processes create contexts on GPUs and communicators. A scenario: 5 s until contexts exist and
# kernels are loaded, 5 s for a model that is built on the host and copied, 2 s for 13 steps of at most 0.15 s; its ranks share
# the host's cores and disk when they start, and each has communicators to create.
ON_GPUS: Final = ExpectedTimes(180.0, 30.0, 12.0, 1.25, 5.0, 60.0)
# As measured on two cores.
DRY_RUN: Final = ExpectedTimes(20.0, 3.0, 0.5, 0.2, 0.5, 15.0)


class Part(NamedTuple):
    """A part of the check. name: of its command in the ledger. trained: its scenarios, by name."""

    name: str
    trained: Mapping[str, Fields]
    expected_s: float


@dataclass(frozen=True)
class Plan:
    """The parts of a check in their order. devices: number of the machine's devices, which are called `device`."""

    device: str
    devices: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, trainings: Trainings, device: str, devices: int, cluster: str, label: str) -> Self:
        """The plan for a machine. cluster: reference of its cluster file from the scenarios. label: of a dry run."""
        times = DRY_RUN if label else ON_GPUS

        def part(name: str, trained: Mapping[str, Fields], verify_s: float = 0.0) -> Part:
            return Part(name, trained, sum(_scenario_s(fields, times) + verify_s for fields in trained.values()))

        parts = (
            Part(CALIBRATE, {}, times.calibrate_s),
            Part(DEVICE, {}, times.fit_s),
            part(FIRST, scenarios.first_models(trainings, cluster)),
            part(FAMILIES, scenarios.every_family(trainings, devices, cluster)),
            part(SHARED, scenarios.shared(trainings, devices, label), times.verify_s),
            part(REST, scenarios.remaining(trainings, devices, cluster)),
            Part(PAGE, {}, times.page_s),
        )
        return cls(device, devices, tuple(one for one in parts if one.trained or one.name in (CALIBRATE, DEVICE, PAGE)))

    @property
    def expected_s(self) -> float:
        """Expected seconds of all parts."""
        return sum(part.expected_s for part in self.parts)

    @property
    def limit_s(self) -> float:
        """Seconds after which measuring is interrupted unless a limit is given: enough for all parts."""
        return _STEP_S * math.ceil(_MARGIN * self.expected_s / _STEP_S)

    def trained(self, name: str) -> Mapping[str, Fields]:
        """Scenarios of a part, by name; none of a part that the plan does not have."""
        return next((part.trained for part in self.parts if part.name == name), {})

    def lines(self, limit_s: float, done: Collection[str]) -> Iterator[str]:
        """The plan as text. done: parts that an interrupted check has completed."""
        left = [part for part in self.parts if part.name not in done]
        left_s = sum(part.expected_s for part in left)
        yield f"plan for {self.devices} × {self.device}, most valuable first; times are estimates, not measured on GPUs yet"
        used_s = 0.0
        for part in self.parts:
            used_s += 0.0 if part.name in done else part.expected_s
            number = f"{len(part.trained)} run{'' if len(part.trained) == 1 else 's'}" if part.trained else ""
            what = "done" if part.name in done else _minutes(part.expected_s)
            later = "" if used_s <= limit_s or part.name in (*done, PAGE) else "  (in part) in a later run"
            yield f"  {part.name:<26} {number:>7} {what:>9}{later}"
        runs = math.ceil(left_s / limit_s)
        times = "once is enough" if runs == 1 else f"run it {runs} times; each continues the one before"
        yield f"  {'in all':<26} {'':>7} {_minutes(left_s):>9}; limit {_minutes(limit_s)}: {times}"
        if _EIGHT_BITS not in PRECISIONS:
            yield f"  without {_EIGHT_BITS}: ranks train in {', '.join(PRECISIONS)} only"


def _scenario_s(fields: Fields, times: ExpectedTimes) -> float:
    return times.scenario_s + times.rank_s * _STRATEGY.validate_python(fields["strategy"]).ranks


def _minutes(seconds: float) -> str:
    return f"{seconds / _MINUTE_S:.1f} min"
