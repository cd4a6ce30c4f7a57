"""Variation of runs of one program, the same for all engines: late starts, jitter and heavy tails, drawn from a seed; and start
times of asynchronous ranks in a long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.perturbations import Tail
from scaleproof.simulator.common.parameter_server import Bsp, Ssp
from scaleproof.simulator.engine.durations import Times, durations_s
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


NONE = Variation()


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


# Relative difference of speeds that is rounding.
_EQUAL: Final = 1e-6


def is_out_of_phase(program: Program) -> bool:
    """Whether the ranks of a long run are out of phase: they do not wait for each other in each step.

    Ranks that begin together stay together until variations of their times have separated them. Ranks whose work is in units
    begin together in each round of units.
    """
    in_phase = isinstance(program.consistency, Bsp) or program.consistency == Ssp(0)
    return not (program.is_static or program.units or in_phase)


def random_starts_s(program: Program, draw: int) -> Times:
    """Start of each rank in seconds, shape (ranks,): at random within a step for training ranks, zero for servers.

    draw: number of the draw, which is the same for equal numbers of ranks.
    """
    ranks = program.ranks
    training = np.flatnonzero(~ranks.is_server)
    begin_s = np.zeros(len(ranks.names))
    begin_s[training] = _round_s(program) * np.random.default_rng(draw).random(len(training))
    return begin_s


def steps_until_bound(program: Program) -> float:
    """Steps, in the mean over training ranks, until the fastest are as far ahead of the slowest as they may be; zero for equal
    ranks and where no bound limits the lead. Ranks that wait for servers need more."""
    if not isinstance(program.consistency, Ssp):
        return 0.0
    rate = 1 / _alone_s(program)[np.unique(program.rank[~program.ranks.is_server[program.rank]])]
    if not rate.max() > (1 + _EQUAL) * rate.min():
        return 0.0
    return float(program.consistency.bound * rate.mean() / (rate.max() - rate.min()))


def _round_s(program: Program) -> float:
    """Estimated seconds of a step of all ranks: busy time of the busiest resource or server, or time of a rank alone."""
    serves = program.kind == Kind.SERVE
    task, resource, per_unit = program.routes.used(program.route)
    moves = np.where(serves, 0.0, program.amount)[task] * per_unit / program.resources.capacity[resource]
    busy_s = np.bincount(resource, moves), np.bincount(program.rank[serves], durations_s(program)[serves])
    return max(float(side.max(initial=0.0)) for side in (*busy_s, _alone_s(program)))


def _alone_s(program: Program) -> Times:
    """Estimated seconds of a step of each rank alone, shape (ranks,)."""
    seconds, count = durations_s(program), len(program.ranks.names)
    alone_s = np.zeros(count)
    np.add.at(alone_s, program.rank, np.where(program.stream == MAIN_STREAM, seconds, 0.0))
    from_server = program.ranks.is_server[program.rank]
    for pulls in (False, True):
        longest_s = np.zeros(count)
        selected = (program.kind == Kind.TRANSFER) & (from_server == pulls)
        np.maximum.at(longest_s, (program.peer if pulls else program.rank)[selected], seconds[selected])
        alone_s += longest_s
    return alone_s
