"""The best configuration for an objective, with a proof of optimality.

Every valid configuration is estimated, and finer recomputation is added where more memory would make a configuration faster.
Those that fit with enough probability are then predicted in the order of their lower bounds until no other one can be better.
Of configurations that differ in bucket size or rank order alone only the best is returned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.bounded_search import BoundedSearch, PlanChoice
from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.estimate.closed_forms import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import valid_server_configurations
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.refine import refined
from scaleproof.simulator.analysis.planner.space import STRATEGIES, server_space, spaces
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.errors import FieldError, InputError, naming_extras
from scaleproof.simulator.common.spec import MAX_WIDTH
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.memory import capacity_bytes
from scaleproof.simulator.memory.remedies import fit_by
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.prediction.accounting import tokens_per_sample
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import FITS, memory_error, most_fitting_bytes
from scaleproof.simulator.uncertainty.unmodelled import unmodelled

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.float64]
# Where nothing fits so surely, the probability is lowered to what something reaches, in steps of this size.
_FITS_STEP: Final = 0.05


class MemoryRoom(NamedTuple):
    """Bytes that a plan may allocate on a device.

    capacity_bytes: of the device, or the limit that the caller gave. limit_bytes: predicted bytes up to which a configuration
    counts as fitting. fits: the probability with which it then fits, which is `wanted` unless no configuration reaches that;
    None where the limit was given, or the error of predicted memory is not known.
    """

    capacity_bytes: float
    limit_bytes: float
    fits: float | None
    wanted: float

    @classmethod
    def of(cls, least_bytes: float, leanest: Scenario, given_bytes: float | None, wanted: float) -> Self:
        """The room for configurations of which the leanest needs `least_bytes`."""
        capacity = given_bytes or capacity_bytes(leanest)
        error = memory_error(leanest) if given_bytes is None else None
        if error is None:
            return cls(capacity, capacity, None, wanted)
        fits, likeliest = wanted, error.below(capacity / least_bytes)
        if likeliest < wanted:
            fits = max(_FITS_STEP, math.floor(likeliest / _FITS_STEP) * _FITS_STEP)
        return cls(capacity, most_fitting_bytes(capacity, error, fits), fits, wanted)


@dataclass(frozen=True)
class PlanResult:
    """The best configurations and what the search considered.

    expected_s, memory_bytes: estimated step time and memory of the fullest rank of each configuration. room: what they may
    allocate; fitting: number of configurations that fit into it. best: predicted configurations, the best first. runner_up: the
    best with other degrees of model parallelism; None if all have the same. riskier: the best of those that fit with a lower
    probability, if it is better. proved: whether no other configuration that fits is better by prediction. replayed, predicted:
    number of configurations. front: rows on the Pareto front of estimated time and memory. framework_is_default: whether
    neither the scenario nor the caller named frameworks. estimate_s, search_s: run time of the two phases in seconds.
    """

    objective: Objective
    configurations: Candidates
    expected_s: Times
    memory_bytes: Times
    room: MemoryRoom
    fitting: int
    best: tuple[PlanChoice, ...]
    runner_up: PlanChoice | None
    riskier: PlanChoice | None
    proved: bool
    replayed: int
    predicted: int
    estimate_s: float
    search_s: float
    front: tuple[int, ...]
    framework_is_default: bool

    @property
    def capacity_bytes(self) -> float:
        """Predicted bytes of a rank up to which a configuration counts as fitting."""
        return self.room.limit_bytes

    def __repr__(self) -> str:
        sure = "proved to be the best" if self.proved else "the best found"
        best = layout(self.configurations.row(self.best[0].row))
        first = f"{best}: {sure} of {len(self.configurations):,} by {self.objective}"
        return f"{first}\n{self.best[0].run!r}"

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row for each of the best configurations. Needs pandas."""
        import pandas as pd

        return pd.DataFrame(
            self.configurations.row(choice.row)
            | {
                "step_time_s": choice.run.step_time_s,
                "samples_per_s": choice.run.samples_per_s,
                "memory_bytes": choice.memory_bytes,
                "fits_probability": choice.fits_probability,
            }
            for choice in self.best
        )


def plan(
    scenario: Scenario,
    gpus: int | None = None,
    objective: Objective = "time",
    memory: float | None = None,
    top: int = 10,
    report_progress: Callable[[str], None] = lambda _: None,
    servers: int | None = None,
    strategies: Collection[str] | None = None,
    schedules: Collection[str] | None = None,
    frameworks: Sequence[Framework] | None = None,
    fits: float = FITS,
) -> PlanResult:
    """The best configurations to train the scenario's model on `gpus` devices; if None, as many as its strategy has.

    memory: bytes that a rank is predicted to allocate at most; if None, as many as fit the device with the probability `fits`,
    or with the highest that any configuration reaches. top: number of configurations to return. report_progress: called with
    progress messages. servers: maximum number of parameter servers. strategies: some of `STRATEGIES`; if None, hybrid, and
    parameter_server if `servers` is given or the scenario has servers. schedules: of pipelines in addition to 1F1B, or "all";
    if None, those with a closed form. frameworks: to choose from; if None, the scenario's, or the default ones of hybrids if it
    names no framework.

    Raises FieldError or InputError for an objective that needs data which the cluster does not give, and where no configuration
    is valid or fits.
    """
    if isinstance(scenario.strategy, CapturedStrategy):
        message = "a captured script has one division of its model; give plan a scenario of the model instead"
        raise FieldError(("strategy",), message)
    kinds = _kinds(scenario, servers, strategies)
    if not 0 < fits < 1:
        raise InputError(f"--fits {fits:g}: the probability that a plan fits; give more than 0 and less than 1")
    _check(scenario, objective, top, kinds)
    began_s = time.perf_counter()
    ranks = gpus or scenario.strategy.training_ranks
    candidates = _candidates(scenario, ranks, servers, kinds, _schedules(schedules), frameworks)
    if not len(candidates):
        raise InputError(
            f"no configuration trains {scenario.total_samples} samples per step on {ranks} ranks; change batch, or the ranks"
        )
    report_progress(f"estimating {len(candidates):,} configurations")
    estimated = _Estimated.of(candidates)
    least_bytes, leanest = float(estimated.memory_bytes.min()), candidates.scenario(int(estimated.memory_bytes.argmin()))
    room = MemoryRoom.of(least_bytes, leanest, memory, fits)
    if least_bytes > room.limit_bytes:
        raise InputError(_nothing_fits(len(candidates), least_bytes, room, leanest))
    refinements = refined(candidates, estimated.expected_s, estimated.memory_bytes, room.limit_bytes)
    if len(refinements):
        estimated = estimated.extended(_Estimated.of(refinements))
        candidates = Candidates.all_of(*candidates.parts, *refinements.parts)
    expected_s, lower_bound_s, memory_bytes = estimated
    estimate_s = time.perf_counter() - began_s
    rows = np.flatnonzero(memory_bytes <= room.limit_bytes)
    search = BoundedSearch(candidates, objective, memory_bytes, top, report_progress)
    # nothing is proved of times that are not modelled
    proved = search.run(rows, expected_s, lower_bound_s) and not unmodelled(scenario)
    risky = np.flatnonzero((memory_bytes > room.limit_bytes) & (memory_bytes <= room.capacity_bytes))
    best, riskier = search.best(), search.riskier(risky, expected_s, lower_bound_s)
    return PlanResult(
        objective, candidates, expected_s, memory_bytes, room, len(rows), best[:top], search.runner_up(), riskier, proved,
        search.replayed, search.predicted,
        estimate_s, time.perf_counter() - began_s - estimate_s, _front(rows, expected_s, memory_bytes),
        frameworks is None and scenario.framework_is_default,
    )  # fmt: skip


def _nothing_fits(count: int, least_bytes: float, room: MemoryRoom, leanest: Scenario) -> str:
    """The message that no configuration fits, with what would make the leanest fit that plans do not search."""
    of = f"of {format_bytes(room.capacity_bytes)}"
    message = f"nothing fits: the smallest of {count:,} configurations needs {format_bytes(least_bytes)} {of} per rank"
    is_device = room.capacity_bytes == capacity_bytes(leanest)
    remedy = fit_by(leanest) if is_device and not leanest.strategy.servers else ""
    if "offload" not in remedy:
        return f"{message}; give more ranks"
    settings = " ".join(f"--set '{setting}'" for setting in remedy.split())
    return f"{message}; give more ranks, or offload states, which plans do not search: {settings}"


class _Estimated(NamedTuple):
    """Estimates by configuration: seconds of a step, its lower bound, and bytes of the rank with the most memory."""

    expected_s: Times
    lower_bound_s: Times
    memory_bytes: Times

    @classmethod
    def of(cls, candidates: Candidates) -> Self:
        """The estimates of some configurations."""
        return cls(*candidates.times(), candidates.memory_bytes())

    def extended(self, others: Self) -> Self:
        """These estimates followed by others."""
        return type(self)(*(np.concatenate(both) for both in zip(self, others, strict=True)))


def _kinds(scenario: Scenario, servers: int | None, strategies: Collection[str] | None) -> Collection[str]:
    if strategies is not None:
        return strategies
    with_servers = servers is not None or isinstance(scenario.strategy, ParameterServer)
    return STRATEGIES if with_servers else STRATEGIES[:1]


def _schedules(names: Collection[str] | None) -> Sequence[ScheduleName]:
    known = *CLOSED, *FOLLOWED
    if names is None:
        return CLOSED
    if set(names) == {"all"}:
        return known
    if not names or not set(names) <= set(known):
        raise InputError(f"--schedules {','.join(names)}: give all, or some of {','.join(known)}")
    return [schedule for schedule in known if schedule in names]


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
    return Candidates.all_of(*map(every, hybrids), valid_server_configurations(served))


def _check(scenario: Scenario, objective: Objective, top: int, kinds: Collection[str]) -> None:
    if scenario.unevenness.wants_mean:
        message = "plans need ranks and links that do not change over time; leave noise, throttled, tail and tenants out"
        raise FieldError(("unevenness",), message)
    node = scenario.cluster.node
    if objective in ("cost", "tokens-per-dollar") and not scenario.cluster.has_costs:
        message = f"missing from the cluster, and {objective} needs it; give a price such as 2.50 USD/GPU-hour"
        raise FieldError(("cluster", "node", "price"), message)
    if objective == "energy" and node.power_W is None:
        raise FieldError(("cluster", "node", "power"), "missing from the cluster, and energy needs it; give a power")
    if objective == "tokens-per-dollar" and tokens_per_sample(scenario.model) is None:
        raise InputError(f"{scenario.model.kind} models have no tokens; plan for cost")
    if not kinds or not set(kinds) <= set(STRATEGIES):
        raise InputError(f"--strategies {','.join(kinds)}: give some of {','.join(STRATEGIES)}")
    if scenario.total_samples > MAX_WIDTH:
        message = f"{scenario.total_samples:,} samples per step; plans keep this total, which is at most {MAX_WIDTH:,}"
        raise FieldError(("batch",), message)
    if top < 1:
        raise InputError(f"--top {top}: give at least 1")


def _front(rows: NDArray[np.int64], expected_s: Times, memory_bytes: Times) -> tuple[int, ...]:
    """The Pareto front of time and memory: rows that no other row beats in both, the fastest first."""
    order = rows[np.lexsort((memory_bytes[rows], expected_s[rows]))]
    least_bytes = np.minimum.accumulate(memory_bytes[order])
    better = np.append(True, memory_bytes[order][1:] < least_bytes[:-1])
    return tuple(order[better].tolist())
