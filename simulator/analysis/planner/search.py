"""The best configuration for an objective, with a proof of optimality.

`plan` enumerates every valid configuration, with states offloaded to hosts only where nothing fits without. It computes their
memory, estimates the step time and a lower bound of it unless far more memory is needed than there is, and adds finer
recomputation where more memory would make a configuration faster. Those that fit with enough probability are then predicted in
the order of their lower bounds until no other one can be better.

A configuration has up to three bounds, each closer to its prediction and more costly than the one before: that of its estimate;
its replay as if no messages shared links, or the time that its most used link needs, as sharing only lengthens; and its
prediction with shared links, which is its value. Of configurations that differ in bucket size, rank order or what sends tokens
to experts alone only the best is returned.
"""

from __future__ import annotations

import functools
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.arrangements import arrangements
from scaleproof.simulator.analysis.planner.candidates import Candidates, Part
from scaleproof.simulator.analysis.planner.estimate import (
    Configurations,
    MixedConfigurations,
    StepTimes,
    by_lengths,
    every,
    every_mixed,
)
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import valid_server_configurations
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.methods import ALL_PARAMETERS, own_method, trained_by
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.refine import refined
from scaleproof.simulator.analysis.planner.space import STRATEGIES, offloading, on_unequal_nodes, server_space, spaces
from scaleproof.simulator.analysis.planner.words import fits_words, layout
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.errors import FieldError, InputError, naming_extras
from scaleproof.simulator.common.spec import MAX_WIDTH
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.engine import (
    NEGLIGIBLE,
    NONE,
    Timeline,
    Variation,
    busiest_s,
    replay,
    shares_negligibly,
    simulate_steady,
)
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.memory import MemoryUse, capacity_bytes
from scaleproof.simulator.memory import memory as memory_of
from scaleproof.simulator.model.fine_tuning import trained_words
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import FITS, memory_error, most_fitting_bytes
from scaleproof.simulator.uncertainty.unmodelled import unmodelled

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Configurations that need more than this multiple of a device, and would not fit by recomputation, are not estimated.
_MOST_MEMORY: Final = 2.0
# Where nothing fits so surely, the probability is lowered to what something reaches, in steps of this size.
_FITS_STEP: Final = 0.05
# A replay takes between a hundredth of a second and some seconds, a prediction with shared links up to ten times as long; a
# plan that needs more of either is reported as not proved.
_MOST_REPLAYS: Final = 300
_MOST_PREDICTIONS: Final = 60
# Number of further configurations that are replayed where none can be proved to be the best.
_MOST_UNPROVED: Final = 60
# Largest number of kinds of configurations that are replayed first for each that is returned: where links are shared, estimates
# may be far off.
_REPLAYED_PER_CHOICE: Final = 2
# Number of nodes of networks with different links up to which replays compile them.
_MOST_FOLDED: Final = 256
# Number of riskier configurations that are predicted.
_MOST_RISKIER: Final = 3


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
    def of(
        cls, least_bytes: float, leanest: Scenario, given_bytes: float | None, wanted: float, device_bytes: float | None = None
    ) -> Self:
        """The room for configurations of which the leanest needs `least_bytes`. device_bytes: capacity of a device, of the
        leanest's if None."""
        capacity = given_bytes or device_bytes or capacity_bytes(leanest)
        error = memory_error(leanest) if given_bytes is None else None
        if error is None or math.isinf(least_bytes):
            return cls(capacity, capacity, None, wanted)
        fits, likeliest = wanted, error.below(capacity / least_bytes)
        if likeliest < wanted:
            fits = max(_FITS_STEP, math.floor(likeliest / _FITS_STEP) * _FITS_STEP)
        return cls(capacity, most_fitting_bytes(capacity, error, fits), fits, wanted)


@dataclass(frozen=True)
class PlanChoice:
    """A configuration with its prediction.

    row: its row in the candidates. value: of the objective; less is better. memory_bytes: of the rank with the most memory.
    fits_probability: that this fits the device; None where the error of predicted memory is not known.
    """

    row: int
    scenario: Scenario
    run: Run
    value: float
    memory_bytes: float
    fits_probability: float | None

    def __repr__(self) -> str:
        return repr(self.run)


@dataclass(frozen=True)
class PlanResult:
    """The best configurations and what the search considered.

    expected_s, memory_bytes: estimated step time and memory of the fullest rank of each configuration; times are infinite
    where far more memory is needed. room: what they may allocate; fitting: number of configurations that fit into it.
    best: predicted configurations, the best first. runner_up: the best with other degrees of model parallelism; None if all
    have the same. riskier: the best of those that fit with a lower probability, if it is better. proved: whether no other
    configuration that fits is better by prediction. replayed, predicted: number of configurations. front: rows on the Pareto
    front of estimated time and memory. framework_is_default: whether neither the scenario nor the caller named frameworks.
    gpus: number of devices, of which plans on unequal nodes may leave some out; by_nodes: the best of each selection of nodes.
    estimate_s, search_s: run time of the two phases in seconds.
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
    gpus: int
    by_nodes: tuple[PlanChoice, ...] = ()

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
    dispatchers: Collection[str] | None = None,
) -> PlanResult:
    """The best configurations to train the scenario's model on `gpus` devices; if None, as many as its strategy has.

    memory: bytes that a rank is predicted to allocate at most; if None, as many as fit the device with the probability `fits`,
    or with the highest that any configuration reaches. top: number of configurations to return. report_progress: called with
    progress messages. servers: maximum number of parameter servers. strategies: some of `STRATEGIES`; if None, hybrid, and
    parameter_server if `servers` is given or the scenario has servers. schedules: of pipelines in addition to 1F1B, or "all";
    if None, those with a closed form. frameworks: to choose from; if None, the scenario's, or the default ones of hybrids if it
    names no framework. dispatchers: of tokens to experts; if None, the scenario's, or those of the framework.

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
    leanest: Scenario | None = None
    for one in (scenario, *(offloading(scenario) if "hybrid" in kinds else ())):
        most = servers if one is scenario else 0
        candidates = candidates_of(one, ranks, most, kinds, _schedules(schedules), frameworks, dispatchers)
        if not len(candidates):
            continue
        count = len(candidates)
        report_progress(f"estimating {len(candidates):,} configurations")
        left_s = np.inf
        if candidates.cluster is not None and objective == "time":
            candidates, left_s = _promising(candidates, memory, fits)
        memory_bytes = candidates.memory_bytes()
        least_bytes, leanest = float(memory_bytes.min()), candidates.scenario(int(memory_bytes.argmin()))
        device_bytes = None if candidates.cluster is None else candidates.cluster.device.capacity_bytes
        room = MemoryRoom.of(least_bytes, leanest, memory, fits, device_bytes)
        use = memory_of(leanest)
        if least_bytes <= room.limit_bytes and (use.host is None or use.host.fits):
            break
    else:
        if leanest is None:
            message = f"no configuration trains {scenario.total_samples} samples per step on {ranks} ranks"
            raise InputError(f"{message}; change batch, or the ranks")
        options: dict[str, Any] = {"objective": objective, "memory": memory, "servers": servers, "strategies": strategies}
        options |= {"schedules": schedules, "frameworks": frameworks, "fits": fits, "dispatchers": dispatchers}
        remedies = "".join(_fitting_methods(scenario, ranks, report_progress, options))
        raise InputError(_nothing_fits(count, least_bytes, room, leanest.training.offload, use) + remedies)
    scenario = one
    estimated = _estimate(candidates, memory_bytes, room)
    finer = refined(candidates, estimated.expected_s, memory_bytes, room.limit_bytes)
    finer_bytes = finer.memory_bytes()
    estimated = StepTimes(*map(np.append, estimated, _estimate(finer, finer_bytes, room)))
    candidates, memory_bytes = replace(candidates, parts=candidates.parts + finer.parts), np.append(memory_bytes, finer_bytes)
    estimate_s = time.perf_counter() - began_s
    search = BoundedSearch(candidates, objective, estimated, memory_bytes, top, report_progress)
    rows = np.flatnonzero(memory_bytes <= room.limit_bytes)
    # nothing is proved of times that are not modelled
    proved = search.run(rows) and not unmodelled(scenario) and search.best()[0].value <= left_s
    risky = np.flatnonzero((memory_bytes > room.limit_bytes) & (memory_bytes <= room.capacity_bytes))
    best, riskier = search.best(), search.riskier(risky)
    return PlanResult(
        objective, candidates, estimated.expected_s, memory_bytes, room, len(rows), best[:top], search.runner_up(), riskier,
        proved, search.replayed, search.predicted, estimate_s, time.perf_counter() - began_s - estimate_s,
        _front(rows, estimated.expected_s, memory_bytes), frameworks is None and scenario.framework_is_default, ranks,
        search.by_nodes(),
    )  # fmt: skip


def _estimate(candidates: Candidates, memory_bytes: Times, room: MemoryRoom) -> StepTimes:
    """Estimated step times and their lower bounds; infinite where far more memory is needed than there is, even if all
    activations are recomputed."""
    estimated = StepTimes(*np.full((2, len(candidates)), np.inf))
    fits_recomputed = memory_bytes[candidates.fully_recomputed()] <= room.limit_bytes
    rows = np.flatnonzero((memory_bytes <= _MOST_MEMORY * room.capacity_bytes) | fits_recomputed)
    estimated.expected_s[rows], estimated.least_s[rows] = candidates.times(rows)
    return estimated


def _nothing_fits(count: int, least_bytes: float, room: MemoryRoom, offload: Sequence[str], use: MemoryUse) -> str:
    """The message that no configuration fits, not even with what is offloaded. use: memory of the leanest."""
    if use.host is not None and not use.host.fits:
        offloaded = " on the devices without, and on hosts with, offloaded states" if offload else ""
        return f"nothing fits{offloaded}; {use.host.problem}"
    of = f"of {format_bytes(room.capacity_bytes)}"
    message = f"nothing fits: the smallest of {count:,} configurations needs {format_bytes(least_bytes)} {of} per rank"
    offloaded = f" with {' and '.join(offload)} on hosts" if offload else ""
    return f"{message}{offloaded}; give more ranks"


def _fitting_methods(
    scenario: Scenario, ranks: int, report_progress: Callable[[str], None], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the methods of fine-tuning with which something fits, where a scenario trains all parameters: with their best step
    time, and what they train in place of that."""
    if own_method(scenario) != ALL_PARAMETERS or scenario.training.freeze:
        return
    for method in ("lora", "qlora"):
        try:
            changed = trained_by(scenario, method)
            best = plan(changed, ranks, top=1, report_progress=report_progress, **options).best[0]
        except InputError:
            continue
        surely = "" if best.fits_probability is None else f" with a probability of {fits_words(best.fits_probability)}"
        surely += f", {' and '.join(best.scenario.training.offload)} on hosts" if best.scenario.training.offload else ""
        yield (
            f"; --set training.adapters={method} fits{surely}: {format_time_s(best.run.step_time_s)} a step, but it trains "
            f"{trained_words(changed.layers(WHOLE))}"
        )


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


def candidates_of(
    scenario: Scenario,
    ranks: int,
    servers: int | None,
    kinds: Collection[str],
    schedules: Sequence[ScheduleName],
    frameworks: Sequence[Framework] | None,
    dispatchers: Collection[str] | None = None,
) -> Candidates:
    """All configurations that a plan of a scenario chooses from, but finer recomputation. Arguments as of `plan`."""
    if scenario.cluster.kinds:
        return Candidates(tuple(_on_mixed_nodes(scenario, ranks, schedules, frameworks)), scenario.cluster)
    # frameworks without ZeRO's stage 3 offload no parameters
    hybrids = [one for one in spaces(scenario, ranks, schedules, frameworks, dispatchers) if one.zero]
    hybrids = hybrids if "hybrid" in kinds else [replace(one, ranks=()) for one in hybrids[:1]]
    served = server_space(scenario, ranks, servers if "parameter_server" in kinds else 0, frameworks)
    parts: Iterable[Configurations] = map(every, hybrids)
    if scenario.batch.lengths is not None:
        parts = (one for part in parts if len(part) for one in by_lengths(part))
    return Candidates((*parts, valid_server_configurations(served)))


def _promising(candidates: Candidates, memory: float | None, wanted: float) -> tuple[Candidates, float]:
    """Candidates on unequal nodes without divisions into stages that cannot be the best by far, and a lower bound of these."""
    assert candidates.cluster is not None
    room = MemoryRoom.of(1.0, candidates.scenario(0), memory, wanted, candidates.cluster.device.capacity_bytes)
    staged = [one for one in candidates.parts if isinstance(one, MixedConfigurations) and one.by_stage]
    rest = (one for one in candidates.parts if one not in staged)
    others = replace(candidates, parts=tuple(one.evaluated() if isinstance(one, MixedConfigurations) else one for one in rest))
    fits = np.flatnonzero(others.memory_bytes() <= room.limit_bytes)
    best_s, least_s = float(others.times(fits).expected_s.min(initial=np.inf)), np.inf
    kept: list[MixedConfigurations] = []
    for part in staged:
        some, left_s = part.promising(room.limit_bytes, best_s)
        kept, least_s = [*kept, some], min(least_s, left_s)
    return replace(candidates, parts=others.parts + tuple(kept)), least_s


def _on_mixed_nodes(
    scenario: Scenario, ranks: int, schedules: Sequence[ScheduleName], frameworks: Sequence[Framework] | None
) -> Iterator[Part]:
    """Yields configurations on some or all nodes of a cluster of different machines."""
    selections = set[Hashable]()
    for cluster in arrangements(scenario.cluster, ranks):
        own, used = scenario.model_copy(update={"cluster": cluster}), min(ranks, cluster.devices)
        for one in spaces(own, used, schedules, frameworks):
            if not cluster.kinds:
                yield every(one)
                continue
            # which kind is first makes no difference to workers
            selection = (
                frozenset(Counter(cluster.kind_of(node) for node in range(cluster.nodes)).items()),
                one.scenario.framework.name,
            )
            yield from every_mixed(on_unequal_nodes(one), has_shares=selection not in selections)
            selections.add(selection)


def _check(scenario: Scenario, objective: Objective, top: int, kinds: Collection[str]) -> None:
    if scenario.unevenness.wants_mean:
        message = "plans need ranks and links that do not change over time; leave noise, throttled, tail and tenants out"
        raise FieldError(("unevenness",), message)
    if scenario.batch.lengths is not None and scenario.cluster.kinds:
        message = "plans for nodes of different kinds are made for samples of one length"
        raise FieldError(("batch", "lengths"), f"{message}; leave it out, and predict what is planned with it")
    if scenario.cluster.kinds and "parameter_server" in kinds:
        raise InputError(
            "--strategies: parameter servers need equal devices on all nodes; leave them out, or give one kind of nodes"
        )
    node = scenario.cluster.node
    if objective in ("cost", "tokens-per-dollar") and not scenario.cluster.has_costs:
        message = f"missing from the cluster, and {objective} needs it; give a price such as 2.50 USD/GPU-hour"
        raise FieldError(("cluster", "node", "price"), message)
    if objective == "energy" and node.power_W is None:
        raise FieldError(("cluster", "node", "power"), "missing from the cluster, and energy needs it; give a power")
    if objective == "tokens-per-dollar" and scenario.tokens_per_sample is None:
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


class BoundedSearch:
    """Predicts configurations, and keeps the best of each kind."""

    def __init__(
        self,
        candidates: Candidates,
        objective: Objective,
        estimated: StepTimes,
        memory_bytes: Times,
        top: int,
        report_progress: Callable[[str], None],
    ) -> None:
        self._candidates, self._objective, self._memory_bytes = candidates, objective, memory_bytes
        # a scenario keeps its program, which is replayed and then predicted
        self._scenario = functools.cache(candidates.scenario)
        self._top, self._progress = top, report_progress
        self._best: dict[Hashable, PlanChoice] = {}
        self._exact: dict[int, Run] = {}
        self._nodes = candidates.nodes()
        # the objective of each row, expected and at least
        self._expected, self._least = map(self._values, estimated)
        self.replayed = self.predicted = 0

    def run(self, rows: Numbers) -> bool:
        """Predicts configurations until none of the rest can be the best; returns False where that would take too many.

        Those expected to be the best come first, to have a value to compare with.
        """
        by_expected = rows[np.argsort(self._expected[rows], kind="stable")]
        replayed = self._replay_likely(by_expected)
        predicted = self._first(replayed)
        for row in predicted:
            self._keep(self.prediction(row))
        left = by_expected[~np.isin(by_expected, [row for _, row in replayed])]
        return self._prove(left, [(bound, row) for bound, row in replayed if row not in predicted])

    def _prove(self, rows: Numbers, replayed: list[tuple[float, int]]) -> bool:
        """Replays and predicts the rest by increasing lower bound until none can be better than the best; returns False where
        too many have lower bounds below its value, of which the first ones are tried.

        rows: not replayed yet, the best expected ones first. replayed: a heap of bounds and rows that are not predicted yet.
        """
        least = self._least
        rows = rows[least[rows] < self.best()[0].value]
        if len(rows) > _MOST_REPLAYS:
            for row in rows[:_MOST_UNPROVED].tolist():
                heapq.heappush(replayed, (self._replayed(row), row))
            self._predict_below(np.inf, replayed)
            return False
        for row in rows[np.argsort(least[rows], kind="stable")].tolist():
            if not self._predict_below(least[row], replayed):
                return False
            if least[row] >= self.best()[0].value:
                return True
            heapq.heappush(replayed, (self._replayed(row), row))
        return self._predict_below(np.inf, replayed)

    def _predict_below(self, limit: float, replayed: list[tuple[float, int]]) -> bool:
        """Predicts the replayed configurations whose bounds are below the limit and below the best value, least first; returns
        False at the limit of predictions. replayed: a heap of bounds and rows."""
        while replayed and replayed[0][0] < min(limit, self.best()[0].value):
            if self.predicted >= _MOST_PREDICTIONS:
                return False
            self._keep(self.prediction(heapq.heappop(replayed)[1]))
        return True

    def _replay_likely(self, rows: Numbers) -> list[tuple[float, int]]:
        """Replays the first of each of the first kinds of configurations that can be among those returned, the first with other
        degrees of model parallelism, and the first on each selection of unequal nodes. Returns bounds and rows, the least bound
        first.

        rows: the best expected ones first.
        """
        bounds: list[tuple[float, int]] = []
        kinds = set[Hashable]()
        for row in rows.tolist():
            if (kind := self._candidates.kind(row)) in kinds:
                continue
            kinds.add(kind)
            if len(bounds) < self._top or self._least[row] < sorted(bounds)[self._top - 1][0]:
                bounds.append((self._replayed(row), row))
            if len(kinds) == _REPLAYED_PER_CHOICE * self._top:
                break
        known = {row for _, row in bounds}
        firsts = [*self._candidates.first_of_degrees(rows)[:2], *self._candidates.first_of_nodes(rows)]
        others = (row for row in dict.fromkeys(firsts) if row not in known)
        return sorted([*bounds, *((self._replayed(row), row) for row in others)])

    def _first(self, replayed: list[tuple[float, int]]) -> list[int]:
        """The first of the replayed configurations, the first with other degrees of model parallelism, and the first on each
        selection of unequal nodes."""
        rows, candidates = np.array([row for _, row in replayed]), self._candidates
        firsts = candidates.first_of_degrees(rows)[:2] + candidates.first_of_nodes(rows)
        return list(dict.fromkeys([*rows[: self._top].tolist(), *firsts]))

    def riskier(self, rows: Numbers) -> PlanChoice | None:
        """The best of some configurations that fit with a lower probability, if it is better than the best of the search."""
        best = self.best()[0].value
        rows = rows[self._least[rows] < best]
        rows = rows[np.argsort(self._expected[rows], kind="stable")]
        kinds = {self._candidates.kind(row): row for row in rows[::-1].tolist()}
        riskier: PlanChoice | None = None
        for bound, row in sorted((self._replayed(row), row) for row in list(kinds.values())[::-1][:_MOST_RISKIER]):
            if bound < best and (choice := self.prediction(row)).value < best:
                riskier, best = choice, choice.value
        return riskier

    def _values(self, seconds: Times, rows: Numbers | slice = slice(None)) -> Times:
        """Lower bounds of the objective for steps of these durations, of some rows or all."""
        if self._objective == "time":
            return seconds
        cluster = self._candidates.base.cluster
        least_W = cluster.node.power_W if cluster.node.idle_power_W is None else cluster.node.idle_power_W
        per_s = least_W if self._objective == "energy" else cluster.node_USD_per_s(least_W)
        assert per_s is not None
        return seconds * self._nodes[rows] * per_s

    def _replayed(self, row: int) -> float:
        """A lower bound of the objective: as if nothing were shared, or if the most used resource were busy all the time. Where
        sharing is negligible, it is the prediction, which is kept."""
        self._progress(f"replaying {layout(self._candidates.row(row))}")
        scenario, busy_s, is_exact = self._scenario(row), 0.0, False
        # equivalent links of large networks are folded for the engine that shares them, which takes longer than the replay
        shares_links = scenario.cluster.is_uniform or scenario.cluster.nodes <= _MOST_FOLDED
        served = bool(scenario.strategy.servers)

        def simulate(program: Program, steps: int, variation: Variation = NONE) -> Timeline:
            nonlocal busy_s, is_exact
            if served:
                # requests to parameter servers may overtake each other, which replay does not model
                is_exact = True
                return simulate_steady(program, steps, variation)
            timeline = replay.simulate(program, steps, variation)
            if shares_links:
                busy_s = busiest_s(program) / scenario.strategy.program_steps / (1 + NEGLIGIBLE)
                is_exact = not program.resources.tenancies and shares_negligibly(timeline, variation)
            return timeline

        run = accounted(timed(scenario, simulate=simulate, shares_links=shares_links), scenario)
        self.replayed += 1
        if is_exact:
            self._exact[row] = run
        return max(self._value(run), float(self._values(np.array([busy_s]), np.array([row]))[0]))

    def prediction(self, row: int) -> PlanChoice:
        """A configuration with its prediction."""
        self._progress(f"predicting {layout(self._candidates.row(row))}")
        scenario, memory_bytes = self._scenario(row), float(self._memory_bytes[row])
        run = self._exact.pop(row, None) or accounted(timed(scenario), scenario)
        self.predicted += 1
        error, device_bytes = memory_error(scenario), scenario.cluster.device.capacity_bytes
        if scenario.cluster.kinds:
            worst = memory_of(scenario).worst
            memory_bytes, device_bytes = worst.total_bytes, worst.capacity_bytes or device_bytes
        elif self._candidates.cluster is not None:
            memory_bytes *= device_bytes / self._candidates.cluster.device.capacity_bytes
        fits = error and error.below(device_bytes / memory_bytes)
        return PlanChoice(row, scenario, run, self._value(run), memory_bytes, fits)

    def _keep(self, choice: PlanChoice) -> None:
        kind = self._candidates.kind(choice.row)
        known = self._best.get(kind)
        if known is None or (choice.value, choice.row) < (known.value, known.row):
            self._best[kind] = choice

    def _value(self, run: Run) -> float:
        """The objective of a run: seconds, US dollars or joules of a step."""
        if self._objective == "time":
            return run.step_time_s
        if self._objective != "energy":
            assert run.cost_USD is not None
            return run.cost_USD["per_step"]
        assert run.energy_J is not None
        return run.energy_J["per_step"] / self._candidates.base.cluster.pue

    def best(self) -> tuple[PlanChoice, ...]:
        """One configuration of each kind that was predicted, the best first."""
        return tuple(sorted(self._best.values(), key=lambda one: (one.value, one.row)))

    def by_nodes(self) -> tuple[PlanChoice, ...]:
        """The best configuration on each selection of unequal nodes, the best first."""
        best = self.best()
        rows = self._candidates.first_of_nodes(np.array([one.row for one in best]))
        return tuple(one for one in best if one.row in rows)

    def runner_up(self) -> PlanChoice | None:
        """The best configuration whose degrees of model parallelism differ from those of the best."""
        first, *others = self.best()
        degrees = self._candidates.degrees
        return next((one for one in others if degrees[one.row] != degrees[first.row]), None)
