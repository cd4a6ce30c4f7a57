"""Variation: what makes runs of one program differ, the same for every engine: late starts, and times drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.program import MAIN_LANE, Kind, Program
from scaleproof.simulator.program.perturbations import Tail


@dataclass(frozen=True)
class Variation:
    """start_s: when each rank class begins its first step, shape (ranks,); all at once if absent.

    compute_jitter, message_jitter: relative standard deviation of the time of each pass (or service), and of each message (or
    collective) past its latency: factors of mean 1, lognormal, drawn anew for every step, task and sample. Of ranks in lockstep
    the slowest counts.
    tail: of the passes of ranks that train some few take much longer, see Tail.
    """

    start_s: NDArray[np.float64] | None = None
    compute_jitter: float = 0.0
    message_jitter: float = 0.0
    tail: Tail | None = None
    seed: int = 0
    samples: int = 1

    @property
    def is_random(self) -> bool:
        """Whether factors are other than 1."""
        return self.compute_jitter > 0 or self.message_jitter > 0 or self.tail is not None

    def factors(self, program: Program, step: int) -> NDArray[np.float64]:
        """What to multiply each task's amount with in a step, shape (tasks, samples)."""
        moves = (program.kind == Kind.TRANSFER) | (program.kind == Kind.COLLECTIVE)
        # a lognormal's relative variance is exp(sigma²) − 1
        sigma = np.sqrt(np.log1p(np.where(moves, self.message_jitter, self.compute_jitter) ** 2))[:, None]
        normal = np.random.default_rng([self.seed, step]).standard_normal((len(program), self.samples))
        lockstep = np.where(moves, 1, program.ranks.lockstep[program.rank])
        for ranks in np.unique(lockstep[lockstep > 1]).tolist():
            tasks = np.flatnonzero(lockstep == ranks)
            others = np.random.default_rng([self.seed, step, ranks]).standard_normal((len(tasks), self.samples, ranks - 1))
            normal[tasks] = np.maximum(normal[tasks], others.max(axis=2))
        factors: NDArray[np.float64] = np.exp(sigma * normal - sigma**2 / 2)
        return factors if self.tail is None else factors * self._tail_factors(program, step, self.tail)

    def _tail_factors(self, program: Program, step: int, tail: Tail) -> NDArray[np.float64]:
        """How many times as long passes take for being in the tail, shape (tasks, samples)."""
        ranks, tasks = program.ranks, np.flatnonzero((program.kind == Kind.COMPUTE) & (program.lane == MAIN_LANE))
        tasks = tasks[~ranks.is_server[program.rank[tasks]]]
        rank = program.rank[tasks]
        drawn = np.random.default_rng([self.seed, step, 0])
        if tail.each == "step":
            places = drawn.random((len(ranks.names), self.samples))[rank]
        else:
            places = drawn.random((len(tasks), self.samples))
        # the least of what as many ranks in lockstep would draw
        places = -np.expm1(np.log1p(-places) / ranks.lockstep[rank][:, None])
        factors = np.ones((len(program), self.samples))
        # what is above the share is not in the tail; below, the place in it is uniform, and its inverse's power Pareto's
        deep = np.maximum(places / tail.share, np.finfo(np.float64).tiny)
        factors[tasks] = np.where(places < tail.share, tail.slowdown * deep ** (-1 / tail.shape), 1.0)
        return factors


NONE = Variation()
