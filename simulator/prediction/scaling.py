"""Scaling efficiency of a scenario, against a baseline: the smallest configuration whose memory holds its model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.perturbations import EVEN
from scaleproof.simulator.common.units import format_number
from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.memory import states
from scaleproof.simulator.model.layers import WHOLE, Shard, block_range, cut_into_stages
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import Tables
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.parallelism.replicas import Hybrid, ReplicaStrategy
from scaleproof.simulator.prediction.steps import STEPS
from scaleproof.simulator.run.breakdown import slope
from scaleproof.simulator.run.records import Scaling
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.framework_choice import with_defaults
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.scenario_job import job_of

# Size of the caches: predictions with the same model and cluster share baselines.
_CACHE_SIZE: Final = 256
# Relative difference of samples per rank that is not mentioned in weak scaling.
_SIMILAR: Final = 0.03


class Degrees(NamedTuple):
    """Degrees of parallelism; expert, expert_tensor: see `Plan`."""

    workers: int = 1
    stages: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.workers * self.stages * self.tensor

    def __str__(self) -> str:
        """'1 worker of 5 stages × 8 tensor-parallel ranks'."""
        text = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        parts = [f"{self.stages} stages"] if self.stages > 1 else []
        parts += [f"{self.tensor} tensor-parallel ranks"] if self.tensor > 1 else []
        return text + (f" of {' × '.join(parts)}" if parts else "")


class _Smallest(NamedTuple):
    """The degrees of a baseline, and whether the model's states fit into its memory."""

    degrees: Degrees
    fits: bool

    def __str__(self) -> str:
        """'1 worker of 5 stages, the smallest that fits'."""
        if not self.fits:
            return f"{self.degrees}, which {'does' if self.degrees.ranks == 1 else 'do'} not fit"
        return str(self.degrees) if self.degrees.ranks == 1 else f"{self.degrees}, the smallest that fits"


class _BaselineLimits(NamedTuple):
    """The maximum degrees of a baseline, and its schedule and options. More than 1 worker only if workers shard states or
    tables."""

    degrees: Degrees
    schedule: str
    sequence_parallel: bool
    overlap_tensor: bool
    tables: Tables | None = None


@dataclass(frozen=True)
class _BaselineInputs:
    """The parts of a scenario that a baseline depends on, without its strategy; equal if their `text` is equal."""

    text: str
    scenario: Scenario = field(compare=False)


# Seconds, or an array of seconds of several points.
_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])


@dataclass(frozen=True)
class Baseline:
    """The baseline of a scenario's scaling efficiency.

    microbatch: samples of a microbatch. microbatches: number per worker by kind of scaling: in weak scaling each rank has as
    many samples as in the scenario, in strong scaling the step has as many.
    """

    inputs: _BaselineInputs
    limits: _BaselineLimits
    smallest: _Smallest
    microbatch: int
    microbatches: Mapping[str, int]

    @classmethod
    def of(cls, scenario: Scenario, degrees: Degrees | None = None) -> Baseline:
        """The baseline of a scenario: microbatches of the same size, and ranks without perturbations. degrees: of the baseline,
        which are part of the scenario's; those of the smallest baseline that fits if None."""
        inputs = _BaselineInputs(
            scenario.model_dump_json(include={"model", "cluster", "framework", "training", "input"}), scenario
        )
        limits, plan = _limits(scenario), scenario.strategy.plan
        smallest = _smallest(inputs, limits) if degrees is None else _Smallest(degrees, _fits(inputs, limits, degrees))
        degrees = smallest.degrees
        microbatch = max(1, scenario.samples_per_worker // plan.microbatches)
        share = degrees.stages * degrees.tensor / (plan.stages * plan.model_parallel_size)
        counts = {
            "weak": max(1, round(plan.microbatches * share)),
            "strong": scenario.total_samples // (microbatch * degrees.workers),
        }
        return cls(inputs, limits, smallest, microbatch, counts)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.smallest.degrees.ranks

    def samples(self, scaling: str) -> int:
        """Samples per step, for 'weak' or 'strong' scaling."""
        return self.smallest.degrees.workers * self.microbatches[scaling] * self.microbatch

    def is_of(self, run: Run, scaling: str) -> bool:
        """Whether a run of the scenario is the baseline itself."""
        same = run.ranks == self.ranks and self.samples(scaling) == run.samples
        return same and self.inputs.scenario.unevenness == EVEN

    def step_s(self, scaling: str) -> float:
        """Step time of the baseline in seconds, by simulation."""
        return self.timed(
            scaling, lambda count: _simulated_s(self.inputs, self.limits, self.smallest.degrees, count, self.microbatch)
        )

    def timed(self, scaling: str, simulated_s: Callable[[int], _Seconds]) -> _Seconds:
        """Step time in seconds. simulated_s: step time of a given number of microbatches per worker.

        A full pipeline needs the same time for each further microbatch, so that long steps are extrapolated from two shorter
        ones.
        """
        microbatches, stages = self.microbatches[scaling], self.smallest.degrees.stages
        filled, more = 2 * stages, 3 * stages
        if microbatches <= more:
            return simulated_s(microbatches)
        filled_s, more_s = (simulated_s(count) for count in (filled, more))
        return filled_s + (microbatches - filled) / (more - filled) * (more_s - filled_s)

    def job(self, microbatches: int) -> tuple[Hybrid, Job]:
        """The strategy and job of the baseline, with a given number of microbatches per worker."""
        return _job(self.inputs, self.limits, self.smallest.degrees, microbatches, self.microbatch)


def common_degrees(a: Scenario, b: Scenario) -> Degrees | None:
    """Degrees of one baseline that suits two scenarios: the largest that are part of both of their own baselines. None if one
    has no baseline, as captured scripts have none."""
    if isinstance(a.strategy, CapturedStrategy) or isinstance(b.strategy, CapturedStrategy):
        return None
    first, second = (Baseline.of(one).smallest.degrees for one in (a, b))
    if first == second:
        return first
    workers = math.gcd(first.workers, second.workers)
    tensor, expert = math.gcd(first.tensor, second.tensor), math.gcd(first.expert, second.expert, workers)
    return Degrees(workers, min(first.stages, second.stages), tensor, expert)


def compared(run: Run, scenario: Scenario, degrees: Degrees | None = None) -> Run:
    """A run of a scenario with its weak and strong scaling efficiency, its speed-up, and a description of the baseline. A
    captured script has no baseline, since it runs on the ranks that it was captured for. degrees: as in `Baseline.of`."""
    if isinstance(scenario.strategy, CapturedStrategy):
        return run
    base = Baseline.of(scenario, degrees)
    result = {}
    for scaling in base.microbatches:
        samples = base.samples(scaling)
        per_s = run.samples_per_s if base.is_of(run, scaling) else samples / base.step_s(scaling)
        speed_up = run.samples_per_s / per_s
        note = _difference(samples / base.ranks, run.samples / run.compute_ranks) if scaling == "weak" else ""
        step = f"{samples} sample{'s' if samples > 1 else ''} a step{note}"
        baseline = f"{base.smallest}, {step}, {format_number(per_s)} samples/s"
        result[scaling] = Scaling(speed_up * base.ranks / run.compute_ranks, speed_up, baseline)
    return replace(run, scaling=result)


def _difference(samples: float, wanted: float) -> str:
    """A note on the samples per rank, if whole microbatches make them differ noticeably from those of the scenario."""
    ratio = samples / wanted
    return "" if abs(ratio - 1) <= _SIMILAR else f" ({ratio:.3g} times as many a rank as in the scenario)"


def forget() -> None:
    """Clears the caches of baselines."""
    for cached in (_smallest, _states_bytes, _simulated_s):
        cached.cache_clear()


def _limits(scenario: Scenario) -> _BaselineLimits:
    plan, strategy = scenario.strategy.plan, scenario.strategy
    if not isinstance(strategy, ReplicaStrategy):
        # one process updates rows alone, as servers do
        updates_rows = isinstance(strategy, ParameterServer) and strategy.sparse and isinstance(scenario.model, Recommender)
        tables = Tables(optimizer="adam" if scenario.training.optimizer == "adam" else "sgd") if updates_rows else None
        return _BaselineLimits(Degrees(), "1f1b", False, False, tables)
    sharing = plan.sharing if scenario.training.zero else math.gcd(plan.workers, plan.expert)
    sharing = plan.workers if plan.exchanges_rows else sharing
    stages = plan.stages
    if any(plan.counted):
        # the first and last stages of the baseline have blocks
        first, last = block_range(scenario.layers(WHOLE))
        stages = min(stages, last - first)
    degrees = Degrees(sharing, stages, plan.tensor, math.gcd(plan.expert, sharing * plan.folds), plan.expert_tensor)
    return _BaselineLimits(
        degrees, "gpipe" if plan.schedule == "gpipe" else "1f1b", plan.sequence_parallel, plan.overlap_tensor,
        plan.tables and plan.tables.defaulted({"plan": "greedy"}),
    )  # fmt: skip


@functools.lru_cache(_CACHE_SIZE)
def _smallest(inputs: _BaselineInputs, limits: _BaselineLimits) -> _Smallest:
    """The fewest ranks whose memory holds weights, gradients and optimizer states of the model.

    A lower bound, since activations depend on the number of microbatches. Never more ranks than the scenario has; one of its
    workers if they do not suffice.
    """
    for degrees in _candidates(limits.degrees):
        if _fits(inputs, limits, degrees):
            return _Smallest(degrees, True)
    return _Smallest(limits.degrees._replace(workers=1, expert=1, expert_tensor=None), False)


def _candidates(limit: Degrees) -> Iterator[Degrees]:
    """Candidate degrees, the fewest ranks first: tensor-parallel ranks, then stages of them, then workers that shard states."""
    for tensor in _divisors(limit.tensor):
        yield Degrees(tensor=tensor)
    for stages in range(2, limit.stages + 1):
        yield Degrees(1, stages, limit.tensor)
    folds = limit.tensor // (limit.expert_tensor or limit.tensor)
    for workers in _divisors(limit.workers)[1 if folds == 1 else 0 :]:
        yield limit._replace(workers=workers, expert=math.gcd(workers * folds, limit.expert))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _fits(inputs: _BaselineInputs, limits: _BaselineLimits, degrees: Degrees) -> bool:
    """Whether the memory of a rank holds its states."""
    return _states_of_fullest_bytes(inputs, limits.tables, degrees) <= inputs.scenario.cluster.device.capacity_bytes


def _states_of_fullest_bytes(inputs: _BaselineInputs, tables: Tables | None, degrees: Degrees) -> float:
    """Bytes of states on the rank that has the most."""
    total_bytes = np.concatenate([[0.0], np.cumsum(_states_bytes(inputs, tables, degrees))])
    cut = cut_into_stages(inputs.scenario.layers(WHOLE), degrees.stages)
    return max(float(total_bytes[part.stop] - total_bytes[part.start]) for part in cut)


@functools.lru_cache(_CACHE_SIZE)
def _states_bytes(inputs: _BaselineInputs, tables: Tables | None, degrees: Degrees) -> list[float]:
    """Bytes of states per rank, for each layer."""
    scenario = inputs.scenario
    tensor, shared = degrees.tensor, degrees.expert_tensor
    shard = Shard(tensor=tensor, expert=degrees.expert, tables=tables, workers=degrees.workers if tables else 1)
    if shared is not None and shared < tensor:
        shard = shard._replace(sequence=True, expert_tensor=shared)
    layers = scenario.layers(shard)
    return [layer.table_bytes + sum(states([layer], scenario.training, degrees.workers)) for layer in layers]


@functools.lru_cache(_CACHE_SIZE)
def _simulated_s(
    inputs: _BaselineInputs, limits: _BaselineLimits, degrees: Degrees, microbatches: int, microbatch: int
) -> float:
    strategy, job = _job(inputs, limits, degrees, microbatches, microbatch)
    return slope(simulate_steady(compile_step(strategy, job), STEPS).step_ends_s())


def _job(
    inputs: _BaselineInputs, limits: _BaselineLimits, degrees: Degrees, microbatches: int, microbatch: int
) -> tuple[Hybrid, Job]:
    strategy = Hybrid.model_validate(
        degrees._asdict()
        | {
            "microbatches": microbatches,
            "schedule": limits.schedule,
            "sequence_parallel": limits.sequence_parallel and degrees.tensor > 1,
            "overlap_tensor": limits.overlap_tensor,
            "tables": limits.tables,
        }
    )
    scenario = inputs.scenario
    complete = with_defaults(strategy, scenario.framework, scenario.training.zero, scenario.training.precision)
    assert isinstance(complete, Hybrid)
    return complete, job_of(scenario, microbatches * microbatch, EVEN, complete)
