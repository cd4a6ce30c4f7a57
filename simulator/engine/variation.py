"""Variation: what makes runs of one program differ, the same for every engine: late starts, and jitter drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.program import Kind, Program


@dataclass(frozen=True)
class Variation:
    """start_s: when each rank class begins its first step, shape (ranks,); all at once if absent.

    compute_jitter, message_jitter: relative standard deviation of the time of each pass (or service), and of each message (or
    collective) past its latency: factors of mean 1, lognormal, drawn anew for every step, task and sample. Of ranks in lockstep
    the slowest counts.
    """

    start_s: NDArray[np.float64] | None = None
    compute_jitter: float = 0.0
    message_jitter: float = 0.0
    seed: int = 0
    samples: int = 1

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
        return factors


NONE = Variation()
