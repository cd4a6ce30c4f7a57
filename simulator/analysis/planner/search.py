"""The best configuration for an objective, with a proof of optimality.

Every valid configuration is estimated, and finer recomputation is added where more memory would make a configuration faster.
Configurations are then replayed in the order of their lower bounds until no other one can be better. Of configurations that
differ in bucket size or rank order alone only the best is returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.estimate.closed_forms import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import valid_server_configurations
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.refine import refined
from scaleproof.simulator.analysis.planner.space import STRATEGIES, server_space, spaces
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common.errors import FieldError, InputError, naming_extras
from scaleproof.simulator.common.spec import MAX_WIDTH
from scaleproof.simulator.engine import replay, simulate_steady
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.accounting import accounted, tokens_per_sample
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import CapturedStrategy, ParameterServer
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName
from scaleproof.simulator.uncertainty.unmodelled import unmodelled

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.float64]
# A replay takes between a tenth of a second and some seconds; a plan that needs more replays is reported as not proved.
_MAX_REPLAYS: Final = 300
# Share of a device's memory that plans leave free. Assumption: PyTorch's allocator retries, and fails, close to the last bytes.
HEADROOM: Final = 0.04


@dataclass(frozen=True)
class PlanChoice:
    """A configuration that was replayed. row: its row in the candidates. value: of the objective; less is better. memory_bytes:
    of the rank with the most memory."""

    row: int
    scenario: Scenario
    run: Run
    value: float
    memory_bytes: float

    def __repr__(self) -> str:
        return repr(self.run)


@dataclass(frozen=True)
class PlanResult:
    """The best configurations and what the search considered.

    expected_s, memory_bytes: estimated step time and memory of the fullest rank of each configuration. fitting: number of
    configurations that fit. best: replayed configurations, the best first. runner_up: the best with other degrees of model
    parallelism; None if all have the same. proved: whether no other configuration that fits is better by replay. front: rows
    on the Pareto front of estimated time and memory. framework_is_default: whether neither the scenario nor the caller named
    frameworks. estimate_s, replay_s: run time of the two phases in seconds.
    """

    objective: Objective
    configurations: Candidates
    expected_s: Times
    memory_bytes: Times
    capacity_bytes: float
    fitting: int
    best: tuple[PlanChoice, ...]
    runner_up: PlanChoice | None
    proved: bool
    replayed: int
    estimate_s: float
    replay_s: float
    front: tuple[int, ...]
    framework_is_default: bool

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
    headroom: float = HEADROOM,
) -> PlanResult:
    """The best configurations to train the scenario's model on `gpus` devices; if None, as many as its strategy has.

    memory: bytes that a rank may allocate; if None, the device's memory less the share `headroom`, since allocators fail when
    nearly full. top: number of configurations to return. report_progress: called with progress messages. servers: maximum
    number of parameter servers. strategies: some of `STRATEGIES`; if None, hybrid, and parameter_server if `servers` is given
    or the scenario has servers. schedules: of pipelines in addition to 1F1B, or "all"; if None, those with a closed form.
    frameworks: to choose from; if None, the scenario's, or the default ones of hybrids if it names no framework.

    Raises FieldError or InputError for an objective that needs data which the cluster does not give, and where no configuration
    is valid or fits.
    """
    if isinstance(scenario.strategy, CapturedStrategy):
        message = "a captured script has one division of its model; give plan a scenario of the model instead"
        raise FieldError(("strategy",), message)
    kinds = _kinds(scenario, servers, strategies)
    if not 0 <= headroom < 1:
        raise InputError(f"--headroom {headroom:g}: a share of the device's memory; give at least 0 and less than 1")
    _check(scenario, objective, top, kinds)
    began_s = time.perf_counter()
    ranks = gpus or scenario.strategy.training_ranks
    candidates = _candidates(scenario, ranks, servers, kinds, _schedules(schedules), frameworks)
    if not len(candidates):
        raise InputError(
            f"no configuration trains {scenario.total_samples} samples per step on {ranks} ranks; change batch, or the ranks"
        )
    report_progress(f"estimating {len(candidates):,} configurations")
    capacity_bytes = memory or (1 - headroom) * scenario.cluster.device.capacity_bytes
    estimated = _Estimated.of(candidates)
    if not (estimated.memory_bytes <= capacity_bytes).any():
        least = float(estimated.memory_bytes.min()) / 2**30
        raise InputError(
            f"nothing fits: the smallest of {len(candidates):,} configurations needs {least:.1f} GiB per rank; give more ranks"
        )
    refinements = refined(candidates, estimated.expected_s, estimated.memory_bytes, capacity_bytes)
    if len(refinements):
        estimated = estimated.extended(_Estimated.of(refinements))
        candidates = Candidates.all_of(*candidates.parts, *refinements.parts)
    expected_s, lower_bound_s, memory_bytes = estimated
    estimate_s = time.perf_counter() - began_s
    rows = np.flatnonzero(memory_bytes <= capacity_bytes)
    search = _Search(candidates, objective, memory_bytes, top, report_progress)
    # nothing is proved of times that are not modelled
    proved = search.run(rows, expected_s, lower_bound_s) and not unmodelled(scenario)
    best = search.best()
    return PlanResult(
        objective, candidates, expected_s, memory_bytes, capacity_bytes, len(rows), best[:top], search.runner_up(), proved,
        search.replayed,
        estimate_s, time.perf_counter() - began_s - estimate_s, _front(rows, expected_s, memory_bytes),
        frameworks is None and scenario.framework_is_default,
    )  # fmt: skip


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


class _Search:
    """Replays configurations, and keeps the best of those that differ in bucket size or rank order alone."""

    def __init__(
        self,
        candidates: Candidates,
        objective: Objective,
        memory_bytes: Times,
        top: int,
        report_progress: Callable[[str], None],
    ) -> None:
        self._configurations, self._objective, self._memory_bytes, self._top, self._progress = (
            candidates,
            objective,
            memory_bytes,
            top,
            report_progress,
        )
        self._best: dict[Hashable, PlanChoice] = {}
        self._nodes = candidates.nodes()
        self.replayed = 0

    def run(self, rows: NDArray[np.int64], expected_s: Times, lower_bound_s: Times) -> bool:
        """Replays configurations until none of the rest can be the best; returns False at the limit of replays.

        Those expected to be the best come first, to have a value to compare with; then all by increasing lower bound.
        """
        likely = self._likely(rows[np.argsort(self._values(expected_s)[rows], kind="stable")])
        for row in likely:
            self._replay(row)
        least = self._values(lower_bound_s)
        for row in rows[np.argsort(least[rows], kind="stable")].tolist():
            if least[row] >= self.best()[0].value:
                return True
            if self.replayed == _MAX_REPLAYS:
                return False
            if row not in likely:
                self._replay(row)
        return True

    def _likely(self, rows: NDArray[np.int64]) -> list[int]:
        """The first of each of the `top` first kinds of configurations, and the first with other degrees of model parallelism.

        rows: the best expected ones first.
        """
        kinds = dict[Hashable, int]()
        for row in rows.tolist():
            kinds.setdefault(self._configurations.kind(row), row)
            if len(kinds) == self._top:
                break
        return list(dict.fromkeys([*kinds.values(), *self._configurations.first_of_degrees(rows)[:2]]))

    def _values(self, seconds: Times) -> Times:
        """Lower bounds of the objective for steps of these durations."""
        if self._objective == "time":
            return seconds
        cluster = self._configurations.base.cluster
        least_W = cluster.node.power_W if cluster.node.idle_power_W is None else cluster.node.idle_power_W
        per_s = least_W if self._objective == "energy" else cluster.node_USD_per_s(least_W)
        assert per_s is not None
        return seconds * self._nodes * per_s

    def _replay(self, row: int) -> None:
        self._progress(f"replaying {layout(self._configurations.row(row))}")
        scenario = self._configurations.scenario(row)
        is_served = self._configurations.is_served(row)
        # messages to parameter servers contend for links; all others are replayed as if nothing were shared
        simulate = simulate_steady if is_served else replay.simulate
        run = accounted(timed(scenario, simulate=simulate, shares_links=is_served), scenario)
        self.replayed += 1
        value = self._value(run)
        choice = PlanChoice(row, scenario, run, value, float(self._memory_bytes[row]))
        kind = self._configurations.kind(row)
        known = self._best.get(kind)
        if known is None or (choice.value, row) < (known.value, known.row):
            self._best[kind] = choice

    def _value(self, run: Run) -> float:
        """The objective of a run: seconds, US dollars or joules of a step."""
        if self._objective == "time":
            return run.step_time_s
        if self._objective != "energy":
            assert run.cost_USD is not None
            return run.cost_USD["per_step"]
        assert run.energy_J is not None
        return run.energy_J["per_step"] / self._configurations.base.cluster.pue

    def best(self) -> tuple[PlanChoice, ...]:
        """One configuration of each kind that was replayed, the best first."""
        return tuple(sorted(self._best.values(), key=lambda one: (one.value, one.row)))

    def runner_up(self) -> PlanChoice | None:
        """The best configuration whose degrees of model parallelism differ from those of the best."""
        first, *others = self.best()
        degrees = self._configurations.degrees
        return next((one for one in others if degrees[one.row] != degrees[first.row]), None)


def _front(rows: NDArray[np.int64], expected_s: Times, memory_bytes: Times) -> tuple[int, ...]:
    """The Pareto front of time and memory: rows that no other row beats in both, the fastest first."""
    order = rows[np.lexsort((memory_bytes[rows], expected_s[rows]))]
    least_bytes = np.minimum.accumulate(memory_bytes[order])
    better = np.append(True, memory_bytes[order][1:] < least_bytes[:-1])
    return tuple(order[better].tolist())
