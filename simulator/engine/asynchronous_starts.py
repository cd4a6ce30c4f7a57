"""Start times of asynchronous ranks in a long run."""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleproof.simulator.common.consistency import Bsp, Ssp
from scaleproof.simulator.engine.durations import Times, durations_s
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program

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
