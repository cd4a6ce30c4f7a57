"""Random variation of runs of one program, the same for all engines: late starts, jitter and heavy tails, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.perturbations import Tail
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program


@dataclass(frozen=True)
class Variation:
    """Late starts and jitter of a run.

    start_s: time at which each rank class begins its first step, shape (ranks,); zero if None.
    compute_jitter, message_jitter: relative standard deviation of the time of each pass (or service), and of each message (or
    collective) without its latency: lognormal factors of mean 1, drawn for every step, task and sample. Of the ranks of a
    model-parallel group the slowest counts. tail: a few passes of training ranks take much longer, see Tail.
    """

    start_s: NDArray[np.float64] | None = None
    compute_jitter: float = 0.0
    message_jitter: float = 0.0
    tail: Tail | None = None
    seed: int = 0
    samples: int = 1

    @property
    def is_random(self) -> bool:
        """Whether any factors differ from 1."""
        return self.compute_jitter > 0 or self.message_jitter > 0 or self.tail is not None

    def factors(self, program: Program, step: int) -> NDArray[np.float64]:
        """Random factors of the tasks' amounts in a step, shape (tasks, samples)."""
        moves = (program.kind == Kind.TRANSFER) | (program.kind == Kind.COLLECTIVE)
        normal = np.random.default_rng([self.seed, step]).standard_normal((len(program), self.samples))
        group_size = np.where(moves, 1, program.ranks.model_parallel_size[program.rank])
        for ranks in np.unique(group_size[group_size > 1]).tolist():
            tasks = np.flatnonzero(group_size == ranks)
            others = np.random.default_rng([self.seed, step, ranks]).standard_normal((len(tasks), self.samples, ranks - 1))
            normal[tasks] = np.maximum(normal[tasks], others.max(axis=2))
        factors = jitter_factors(normal, np.where(moves, self.message_jitter, self.compute_jitter)[:, None])
        return factors if self.tail is None else factors * self._tail_factors(program, step, self.tail)

    def _tail_factors(self, program: Program, step: int, tail: Tail) -> NDArray[np.float64]:
        """Factors of the durations of passes in the tail, 1 for all others, shape (tasks, samples)."""
        ranks, tasks = program.ranks, np.flatnonzero((program.kind == Kind.COMPUTE) & (program.stream == MAIN_STREAM))
        tasks = tasks[~ranks.is_server[program.rank[tasks]]]
        rank = program.rank[tasks]
        generator = np.random.default_rng([self.seed, step, 0])
        if tail.each == "step":
            places = generator.random((len(ranks.names), self.samples))[rank]
        else:
            places = generator.random((len(tasks), self.samples))
        # the minimum over the ranks of a model-parallel group
        places = -np.expm1(np.log1p(-places) / ranks.model_parallel_size[rank][:, None])
        factors = np.ones((len(program), self.samples))
        factors[tasks] = tail_factors(places, tail)
        return factors


def jitter_factors(normal: ArrayLike, deviation: ArrayLike) -> NDArray[np.float64]:
    """Lognormal factors of mean 1 from draws of a standard normal distribution. deviation: relative, of the factors."""
    # a lognormal's relative variance is exp(sigma²) − 1
    sigma = np.sqrt(np.log1p(np.square(deviation)))
    factors: NDArray[np.float64] = np.exp(sigma * normal - sigma**2 / 2)
    return factors


def tail_factors(places: ArrayLike, tail: Tail) -> NDArray[np.float64]:
    """Factors of durations from uniform draws between 0 and 1: 1 where they are not in the tail."""
    # draws below the share are in the tail; their position in it is uniform, and a negative power of it Pareto distributed
    deep = np.maximum(np.divide(places, tail.share), np.finfo(np.float64).tiny)
    return np.where(np.less(places, tail.share), tail.slowdown * deep ** (-1 / tail.shape), 1.0)


NONE = Variation()
