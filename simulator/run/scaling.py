"""Baseline: the smallest configuration that holds a scenario's model, against which its scaling is told."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.memory import states
from scaleproof.simulator.model.layers import Shard, cut_into_stages, glued_ends
from scaleproof.simulator.program.perturbations import EVEN
from scaleproof.simulator.run.run import Run, slope
from scaleproof.simulator.scenario.framework_choice import with_defaults
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.hybrid import Hybrid
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.replica_strategy import Replicated

# Step 0 fills what overlaps from step to step; the one after it is steady, and like all that follow where nothing is random.
STEPS: Final = 2
# Predictions that share a model and a cluster share baselines; of many clusters, each asked once, few are kept.
_KEPT: Final = 256
# share by which samples a rank may differ untold in weak scaling
_ALIKE: Final = 0.03


class Degrees(NamedTuple):
    """Ranks along each axis; expert, expert_tensor: as in `Plan`."""

    workers: int = 1
    stages: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int | None = None

    @property
    def ranks(self) -> int:
        return self.workers * self.stages * self.tensor

    def __str__(self) -> str:
        """'1 worker of 5 stages × 8 tensor-parallel ranks'."""
        text = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        parts = [f"{self.stages} stages"] if self.stages > 1 else []
        parts += [f"{self.tensor} tensor-parallel ranks"] if self.tensor > 1 else []
        return text + (f" of {' × '.join(parts)}" if parts else "")


class _Smallest(NamedTuple):
    """A baseline's ranks, and whether they hold the model's states."""

    degrees: Degrees
    holds: bool

    def __str__(self) -> str:
        """'1 worker of 5 stages, the fewest that hold the model'."""
        if not self.holds:
            return f"{self.degrees}, which {'does' if self.degrees.ranks == 1 else 'do'} not hold the model"
        return str(self.degrees) if self.degrees.ranks == 1 else f"{self.degrees}, the fewest that hold the model"


class _Most(NamedTuple):
    """What a baseline has at most, and how it trains. workers: 1, unless they share what one alone need not hold."""

    degrees: Degrees
    schedule: str
    sequence_parallel: bool
    overlap_tensor: bool


@dataclass(frozen=True)
class _BaselineInputs:
    """The parts of a scenario that a baseline depends on, beside its strategy; `text` is all that is compared."""

    text: str
    scenario: Scenario = field(compare=False)


# Seconds, or those of several points.
_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])


@dataclass(frozen=True)
class Baseline:
    """What a scenario's scaling is told against. microbatches: of each of its workers by scaling, each of `microbatch` samples:
    in weak scaling as many as leave each rank as many samples as in the scenario, in strong scaling all samples of a step."""

    ground: _BaselineInputs
    most: _Most
    smallest: _Smallest
    microbatch: int
    microbatches: Mapping[str, int]

    @classmethod
    def of(cls, scenario: Scenario) -> Baseline:
        """The baseline takes microbatches of the scenario's size, on even ranks whatever the scenario's unevenness."""
        ground = _BaselineInputs(
            scenario.model_dump_json(include={"model", "cluster", "framework", "training", "input"}), scenario
        )
        most, plan = _most(scenario), scenario.strategy.plan
        smallest = _smallest(ground, most)
        degrees = smallest.degrees
        microbatch = scenario.samples_per_worker // plan.microbatches
        share = degrees.stages * degrees.tensor / (plan.stages * plan.lockstep)
        counts = {
            "weak": max(1, round(plan.microbatches * share)),
            "strong": scenario.total_samples // (microbatch * degrees.workers),
        }
        return cls(ground, most, smallest, microbatch, counts)

    @property
    def ranks(self) -> int:
        """That it has in all."""
        return self.smallest.degrees.ranks

    def samples(self, scaling: str) -> int:
        """Of a step."""
        return self.smallest.degrees.workers * self.microbatches[scaling] * self.microbatch

    def is_of(self, run: Run, scaling: str) -> bool:
        """Whether a run of the scenario is the baseline itself."""
        same = run.ranks == self.ranks and self.samples(scaling) == run.samples
        return same and self.ground.scenario.unevenness == EVEN

    def step_s(self, scaling: str) -> float:
        """Step time of even ranks."""
        return self.timed(
            scaling, lambda count: _simulated_s(self.ground, self.most, self.smallest.degrees, count, self.microbatch)
        )

    def timed(self, scaling: str, simulated_s: Callable[[int], _Seconds]) -> _Seconds:
        """Step time, where that of so many microbatches a worker is told. A full pipeline takes the same time for every further
        microbatch, so a long step is told from two shorter ones."""
        microbatches, stages = self.microbatches[scaling], self.smallest.degrees.stages
        filled, more = 2 * stages, 3 * stages
        if microbatches <= more:
            return simulated_s(microbatches)
        filled_s, more_s = (simulated_s(count) for count in (filled, more))
        return filled_s + (microbatches - filled) / (more - filled) * (more_s - filled_s)

    def job(self, microbatches: int) -> tuple[Hybrid, Job]:
        """What it compiles, with so many microbatches a worker."""
        return _job(self.ground, self.most, self.smallest.degrees, microbatches, self.microbatch)


def compared(run: Run, scenario: Scenario) -> Run:
    """`run` of `scenario` with its weak and strong scaling efficiency, its speed-up, and what these are against."""
    against = Baseline.of(scenario)
    efficiency, speed_up, baseline = {}, {}, {}
    for scaling in against.microbatches:
        samples = against.samples(scaling)
        per_s = run.samples_per_s if against.is_of(run, scaling) else samples / against.step_s(scaling)
        speed_up[scaling] = run.samples_per_s / per_s
        efficiency[scaling] = speed_up[scaling] * against.ranks / run.compute_ranks
        unlike = _unlike(samples / against.ranks, run.samples / run.compute_ranks) if scaling == "weak" else ""
        each = f"{samples} sample{'s' if samples > 1 else ''} a step{unlike}"
        baseline[scaling] = f"{against.smallest}, {each}, {per_s:.4g} samples/s"
    return replace(run, efficiency=efficiency, speed_up=speed_up, baseline=baseline)


def _unlike(each: float, wanted: float) -> str:
    """How many samples a rank has, where whole microbatches leave it noticeably more or fewer than the scenario does."""
    times = each / wanted
    return "" if abs(times - 1) <= _ALIKE else f" ({times:.3g} times as many a rank as in the scenario)"


def forget() -> None:
    """Drops the baselines that are kept from one prediction to the next."""
    for kept in (_smallest, _states_bytes, _simulated_s):
        kept.cache_clear()


def _most(scenario: Scenario) -> _Most:
    plan = scenario.strategy.plan
    if not isinstance(scenario.strategy, Replicated):
        return _Most(Degrees(), "1f1b", False, False)
    sharing = plan.sharing if scenario.training.zero else math.gcd(plan.workers, plan.expert)
    stages = plan.stages
    if any(plan.counted):
        # the baseline's first and last stages have blocks
        first, last = glued_ends(scenario.model.build_layers())
        stages = min(stages, last - first)
    degrees = Degrees(sharing, stages, plan.tensor, math.gcd(plan.expert, sharing * plan.folds), plan.expert_tensor)
    return _Most(degrees, "gpipe" if plan.schedule == "gpipe" else "1f1b", plan.sequence_parallel, plan.overlap_tensor)


@functools.lru_cache(_KEPT)
def _smallest(ground: _BaselineInputs, most: _Most) -> _Smallest:
    """The fewest ranks that hold weights, gradients and optimizer state of the model.

    A lower bound, since activations depend on how many microbatches there are: never more than the scenario itself has, and
    where those do not hold it either one of its workers.
    """
    for degrees in _ladder(most.degrees):
        if _held_bytes(ground, degrees) <= ground.scenario.cluster.device.capacity_bytes:
            return _Smallest(degrees, True)
    return _Smallest(most.degrees._replace(workers=1, expert=1, expert_tensor=None), False)


def _ladder(most: Degrees) -> Iterator[Degrees]:
    """What may hold a model, the fewest ranks first: tensor-parallel ranks, then stages of them, then workers that share."""
    for tensor in _divisors(most.tensor):
        yield Degrees(tensor=tensor)
    for stages in range(2, most.stages + 1):
        yield Degrees(1, stages, most.tensor)
    folds = most.tensor // (most.expert_tensor or most.tensor)
    for workers in _divisors(most.workers)[1 if folds == 1 else 0 :]:
        yield most._replace(workers=workers, expert=math.gcd(workers * folds, most.expert))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _held_bytes(ground: _BaselineInputs, degrees: Degrees) -> float:
    """Bytes of states that the fullest rank holds."""
    each_bytes = _states_bytes(ground, degrees)
    total_bytes = np.concatenate([[0.0], np.cumsum(each_bytes)])
    cut = cut_into_stages(ground.scenario.model.build_layers(), degrees.stages)
    return max(float(total_bytes[part.stop] - total_bytes[part.start]) for part in cut)


@functools.lru_cache(_KEPT)
def _states_bytes(ground: _BaselineInputs, degrees: Degrees) -> list[float]:
    """Of each layer on a rank."""
    scenario = ground.scenario
    tensor, shared = degrees.tensor, degrees.expert_tensor
    shard = Shard(tensor=tensor, expert=degrees.expert)
    if shared is not None and shared < tensor:
        shard = shard._replace(sequence=True, expert_tensor=shared)
    layers = scenario.model.build_layers(shard)
    return [sum(states([layer], scenario.training, degrees.workers)) for layer in layers]


@functools.lru_cache(_KEPT)
def _simulated_s(ground: _BaselineInputs, most: _Most, degrees: Degrees, microbatches: int, microbatch: int) -> float:
    strategy, job = _job(ground, most, degrees, microbatches, microbatch)
    return slope(simulate_steady(strategy.compile(job), STEPS).step_ends_s())


def _job(ground: _BaselineInputs, most: _Most, degrees: Degrees, microbatches: int, microbatch: int) -> tuple[Hybrid, Job]:
    strategy = Hybrid.model_validate(
        degrees._asdict()
        | {
            "microbatches": microbatches,
            "schedule": most.schedule,
            "sequence_parallel": most.sequence_parallel and degrees.tensor > 1,
            "overlap_tensor": most.overlap_tensor,
        }
    )
    scenario = ground.scenario
    decided = with_defaults(strategy, scenario.framework, scenario.training.zero, scenario.training.precision)
    assert isinstance(decided, Hybrid)
    return decided, scenario.job(microbatches * microbatch, strategy=decided)
