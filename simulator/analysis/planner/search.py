"""Search: the best configuration for an objective, proved among all: every valid one is estimated, finer recomputation is added
where more memory would make one faster, and those that could be the best are replayed, in the order of what they take at least,
until no other could be."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.estimate.parameter_server.configurations import every_served
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.refine import refined
from scaleproof.simulator.analysis.planner.space import STRATEGIES, server_space, spaces
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.accounting import accounted, tokens_per_sample
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]
# Replays take a tenth of a second to some seconds each: what is left after so many is told as not proved.
_MOST_REPLAYS: Final = 300
# Share of a device's memory that plans leave free. Assumption: PyTorch's allocator retries, and fails, close to the last bytes.
HEADROOM: Final = 0.04


@dataclass(frozen=True)
class PlanChoice:
    """A configuration that was replayed. row: its number among the configurations. value: of the objective, less is better.
    memory_bytes: of the fullest rank."""

    row: int
    scenario: Scenario
    run: Run
    value: float
    memory_bytes: float


@dataclass(frozen=True)
class PlanResult:
    """best: of what was replayed, the best first. proved: whether no other configuration that fits beats it by replay. front:
    rows that nothing beats in estimated time and memory. framework_is_default: whether neither the scenario nor the caller
    named frameworks. Seconds that estimating and replaying took."""

    objective: Objective
    configurations: Candidates
    expected_s: Times
    memory_bytes: Times
    capacity_bytes: float
    fitting: int
    best: tuple[PlanChoice, ...]
    proved: bool
    replayed: int
    estimate_s: float
    replay_s: float
    front: tuple[int, ...]
    framework_is_default: bool

    def table(self) -> pd.DataFrame:
        """A row for each of the best, with their configurations."""
        return pd.DataFrame(
            self.configurations.row(choice.row)
            | {
                "step_time_s": choice.run.step_time_s,
                "samples_per_s": choice.run.samples_per_s,
                "memory_bytes": choice.memory_bytes,
            }
            for choice in self.best
        )


def plan(
    scenario: Scenario,
    gpus: int | None = None,
    objective: Objective = "time",
    memory: float | None = None,
    top: int = 10,
    tell: Callable[[str], None] = lambda _: None,
    servers: int | None = None,
    strategies: Collection[str] | None = None,
    schedules: Collection[str] | None = None,
    frameworks: Sequence[Framework] | None = None,
    headroom: float = HEADROOM,
) -> PlanResult:
    """The best ways to train the scenario's model on `gpus` devices; as many as its strategy has, if None.

    memory: bytes that a rank may allocate; if None, what its device has less the share `headroom` of it, since allocators fail
    when nearly full. tell: is called with what is being done. servers: at most this number. strategies: which of `STRATEGIES`;
    hybrid, if None, and with servers where their number is given or the scenario has some. schedules: of pipelines in addition
    to 1F1B, or "all"; those that have a closed form, if None. frameworks: to choose from; the scenario's, if None, or the usual
    ones of hybrids where it names none.

    Raises FieldError or InputError for what cannot be planned: an objective that the cluster says nothing of, no configuration
    that is valid or fits.
    """
    kinds = _kinds(scenario, servers, strategies)
    if not 0 <= headroom < 1:
        raise InputError(f"--headroom {headroom:g}: a share of the device's memory; give 0 or more, and less than 1")
    _check(scenario, objective, top, kinds)
    began_s = time.perf_counter()
    ranks = gpus or scenario.strategy.training_ranks
    found = _candidates(scenario, ranks, servers, kinds, _schedules(schedules), frameworks)
    if not len(found):
        raise InputError(f"there is no way to train {scenario.total_samples} samples a step on so many ranks; change batch")
    tell(f"estimating {len(found):,} configurations")
    capacity_bytes = memory or (1 - headroom) * scenario.cluster.device.capacity_bytes
    estimated = _Estimated.of(found)
    if not (estimated.held_bytes <= capacity_bytes).any():
        least = float(estimated.held_bytes.min()) / 2**30
        raise InputError(f"nothing fits: the leanest of {len(found):,} configurations holds {least:.1f} GiB; give more ranks")
    finer = refined(found, estimated.expected_s, estimated.held_bytes, capacity_bytes)
    if len(finer):
        estimated = estimated.and_also(_Estimated.of(finer))
        found = Candidates.all_of(*found.parts, *finer.parts)
    expected_s, least_s, held_bytes = estimated
    estimate_s = time.perf_counter() - began_s
    rows = np.flatnonzero(held_bytes <= capacity_bytes)
    search = _Search(found, objective, held_bytes, top, tell)
    proved = search.run(rows, expected_s, least_s)
    return PlanResult(
        objective, found, expected_s, held_bytes, capacity_bytes, len(rows), search.best(), proved, search.replayed,
        estimate_s, time.perf_counter() - began_s - estimate_s, _front(rows, expected_s, held_bytes),
        frameworks is None and scenario.framework_is_default,
    )  # fmt: skip


class _Estimated(NamedTuple):
    """Seconds of a step that are expected, and at least, and bytes of the fullest rank, by configuration."""

    expected_s: Times
    least_s: Times
    held_bytes: Times

    @classmethod
    def of(cls, found: Candidates) -> Self:
        """Estimates of some configurations."""
        return cls(*found.times(), found.memory_bytes())

    def and_also(self, others: Self) -> Self:
        """The same with others after them."""
        return type(self)(*(np.concatenate(both) for both in zip(self, others, strict=True)))


def _kinds(scenario: Scenario, servers: int | None, strategies: Collection[str] | None) -> Collection[str]:
    if strategies is not None:
        return strategies
    asked = servers is not None or isinstance(scenario.strategy, ParameterServer)
    return STRATEGIES if asked else STRATEGIES[:1]


def _schedules(names: Collection[str] | None) -> Sequence[ScheduleName]:
    every_one = *CLOSED, *FOLLOWED
    if names is None:
        return CLOSED
    if set(names) == {"all"}:
        return every_one
    if not names or not set(names) <= set(every_one):
        raise InputError(f"--schedules {','.join(names)}: give all, or some of {','.join(every_one)}")
    return [schedule for schedule in every_one if schedule in names]


def _candidates(
    scenario: Scenario,
    ranks: int,
    servers: int | None,
    kinds: Collection[str],
    schedules: Sequence[ScheduleName],
    frameworks: Sequence[Framework] | None,
) -> Candidates:
    hybrids = spaces(scenario, ranks, schedules, frameworks)
    hybrids = hybrids if "hybrid" in kinds else [replace(hybrids[0], ranks=())]
    served = server_space(scenario, ranks, servers if "parameter_server" in kinds else 0, frameworks)
    return Candidates.all_of(*map(every, hybrids), every_served(served))


def _check(scenario: Scenario, objective: Objective, top: int, kinds: Collection[str]) -> None:
    if scenario.unevenness.wants_mean:
        message = "plans are for ranks and links that are the same at all times; leave noise, throttled, tail and tenants out"
        raise FieldError(("unevenness",), message)
    node = scenario.cluster.node
    if objective in ("cost", "tokens-per-dollar") and node.price_USD_per_s is None:
        raise FieldError(("cluster", "node", "price"), f"the cluster names no price, which {objective} follows from; give it")
    if objective == "energy" and node.power_W is None:
        raise FieldError(("cluster", "node", "power"), "the cluster names no power, which energy follows from; give it")
    if objective == "tokens-per-dollar" and tokens_per_sample(scenario.model) is None:
        raise InputError(f"a {scenario.model.kind} reads no tokens; plan for cost")
    if not kinds or not set(kinds) <= set(STRATEGIES):
        raise InputError(f"--strategies {','.join(kinds)}: give some of {','.join(STRATEGIES)}")
    if top < 1:
        raise InputError(f"--top {top}: give at least 1")


class _Search:
    """Replays configurations, and keeps the `top` best."""

    def __init__(
        self, found: Candidates, objective: Objective, held_bytes: Times, top: int, tell: Callable[[str], None]
    ) -> None:
        self._found, self._objective, self._held_bytes, self._top, self._tell = found, objective, held_bytes, top, tell
        self._kept: list[tuple[float, int, PlanChoice]] = []
        self._nodes = found.nodes()
        self.replayed = 0

    def run(self, rows: NDArray[np.int64], expected_s: Times, least_s: Times) -> bool:
        """Whether all were replayed that may be the best. Those that are expected to be among the best come first, so that
        there is something to beat; then all in the order of what they take at least."""
        likely = rows[np.argsort(self._values(expected_s)[rows], kind="stable")[: self._top]].tolist()
        for row in likely:
            self._replay(row)
        least = self._values(least_s)
        for row in rows[np.argsort(least[rows], kind="stable")].tolist():
            if least[row] >= self.best()[0].value:
                return True
            if self.replayed == _MOST_REPLAYS:
                return False
            if row not in likely:
                self._replay(row)
        return True

    def _values(self, seconds: Times) -> Times:
        """Of the objective: what steps that take so long come to at least."""
        if self._objective == "time":
            return seconds
        node = self._found.base.cluster.node
        if self._objective != "energy":
            return seconds * self._nodes
        assert node.power_W is not None
        return seconds * self._nodes * (node.idle_power_W if node.idle_power_W is not None else node.power_W)

    def _replay(self, row: int) -> None:
        self._tell(f"replaying {label(self._found, row)}")
        scenario = self._found.scenario(row)
        run = accounted(timed(scenario, simulate=self._found.simulate(row)), scenario)
        self.replayed += 1
        value = self._value(run, int(self._nodes[row]))
        choice = PlanChoice(row, scenario, run, value, float(self._held_bytes[row]))
        heapq.heappush(self._kept, (-choice.value, -row, choice))
        if len(self._kept) > self._top:
            heapq.heappop(self._kept)

    def _value(self, run: Run, nodes: int) -> float:
        """What nodes cost goes by the time for which they are taken."""
        if self._objective == "time":
            return run.step_time_s
        if self._objective != "energy":
            return run.step_time_s * nodes
        assert run.energy_J is not None
        return run.energy_J["per_step"] / self._found.base.cluster.pue

    def best(self) -> tuple[PlanChoice, ...]:
        return tuple(choice for *_, choice in sorted(self._kept, key=lambda one: (-one[0], -one[1])))


def _front(rows: NDArray[np.int64], expected_s: Times, held_bytes: Times) -> tuple[int, ...]:
    """Rows than which no other is both faster and leaner, the fastest first."""
    order = rows[np.lexsort((held_bytes[rows], expected_s[rows]))]
    leanest = np.minimum.accumulate(held_bytes[order])
    better = np.append(True, held_bytes[order][1:] < leanest[:-1])
    return tuple(order[better].tolist())


def label(found: Candidates, row: int) -> str:
    """'8 tensor × 8 stages × 16 workers, interleaved_1f1b over 3 chunks, …' of a configuration."""
    one = found.row(row)
    if found.is_served(row):
        return f"{one['workers']} workers, {one['servers']} {one['placement']} servers"
    degrees = " × ".join(f"{one[name]} {name}" for name in ("tensor", "context", "stages", "workers") if one[name] > 1)
    parts = f"{one['microbatches']} × {one['samples']} samples", one["schedule"], f"zero {one['zero']}", one["framework"]
    return ", ".join((degrees or "1 rank", *parts))
