"""The passes of a rank in a step, without repetitions that do not change its memory."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.fullest_passes import changes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.step import RankPass
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order
from scaleproof.simulator.strategy.plan_costs import pass_times

# Repetitions of a steady state that are kept: the allocator's state repeats itself from the second on.
_KEPT_REPETITIONS: Final = 3


def rank_passes(setting: MemoryInputs, rank: int) -> list[RankPass]:
    """The passes of a pipeline rank in order, of which a repeated sequence that allocates as much as it frees is kept three
    times."""
    plan = setting.plan
    passes = order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, pass_times(plan, setting.job))
    kind, chunk, microbatch = (values[rank][passes.kind[rank] >= 0] for values in passes[:3])
    changed, longest = changes(kind, chunk, plan.chunks), 3 * plan.stages * plan.chunks
    kept = without_repetitions(kind * plan.chunks + chunk, changed, longest)
    return [RankPass(Pass(kind[at]), int(chunk[at]), int(microbatch[at])) for at in kept]


def without_repetitions(codes: NDArray[np.int64], changed: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Indices of passes without the repetitions of the sequence that saves the most, of at most `longest` passes, which leaves
    the numbers of microbatches in flight as they were.

    codes: equal for passes that allocate the same. changed: changes of those numbers, by pass in the second axis.
    """
    best = range(0)
    for period in range(1, min(longest, len(codes) // (_KEPT_REPETITIONS + 1)) + 1):
        differs = np.flatnonzero(codes[period:] != codes[:-period])
        edges = np.concatenate([[-1], differs, [len(codes) - period]])
        at = int(np.argmax(np.diff(edges)))
        begin, equal = int(edges[at]) + 1, int(edges[at + 1] - edges[at]) - 1
        dropped = (equal // period + 1 - _KEPT_REPETITIONS) * period
        if dropped > len(best) and not changed[:, begin : begin + period].sum(axis=1).any():
            first = begin + _KEPT_REPETITIONS * period
            best = range(first, first + dropped)
    return np.delete(np.arange(len(codes)), best)
