"""Lanes: what the ranks of one replica do in a step, pass by pass or piece by piece, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.strategy.data_parallel.loading_tasks import FIRST_SLOT
from scaleproof.simulator.strategy.pipeline.schedule import Pass, PassTimes, order
from scaleproof.simulator.strategy.plan import Plan

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# From the slot of a task to that of the next in its lane: between them are those of messages, gathers and sums.
SLOTS: Final = 4
# Where a lane only waits, in place of a Pass: it begins, or turns from forward to backward.
BEGIN: Final = -1
TURN: Final = -2


class Lanes(NamedTuple):
    """Tasks of the main lanes, lane by lane in their order; arrays of shape (tasks,).

    rank: of the pipeline. kind: Pass, or where a lane only waits BEGIN or TURN. stage: of the model. begin, end: numbers of the
    first layer that is passed, and of the one behind the last. cut: whether it is a piece of a pass that is cut. first, last:
    of its pass. slot: hint of an order.
    """

    rank: Numbers
    kind: Numbers
    stage: Numbers
    microbatch: Numbers
    begin: Numbers
    end: Numbers
    cut: Flags
    first: Flags
    last: Flags
    slot: Numbers

    def table(self, at: Flags, stages: int, microbatches: int, *kinds: Pass) -> Numbers:
        """Which task of every stage's pass of such a kind over every microbatch is `at` the pass's begin or end (`first` or
        `last`), shape (stages, microbatches)."""
        tasks = np.flatnonzero(np.isin(self.kind, kinds) & at)
        result = np.full((stages, microbatches), -1)
        result[self.stage[tasks], self.microbatch[tasks]] = tasks
        return result


def lanes(plan: Plan, cuts: Sequence[Sequence[range]], all_cut: bool, times: PassTimes) -> Lanes:
    """The tasks of a plan's ranks, in the order of its schedule.

    cuts: for each stage of the model the ranges of layers, in forward order, into which passes over it are cut: all of them
    where `all_cut`, else the last backward pass, which completes gradients, and the first forward pass where parameters are
    gathered beside it. Before its passes a lane has a task at which the step begins and the first receive is posted.
    """
    passes = order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, times)
    rank, column = np.nonzero(passes.slot >= 0)
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    stage = np.array(plan.stage_of)[rank, chunk]
    cut = kind != Pass.WEIGHT if all_cut else _completes(kind, stage)
    if plan.overlap_gather:
        cut[np.unique(stage, return_index=True)[1]] = True
    pieces = np.array([len(ranges) for ranges in cuts])
    counts = np.where(cut, pieces[stage], 1)
    of = np.repeat(np.arange(len(kind)), counts)
    piece = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    # a backward pass comes to the last layers first
    number = np.where(kind[of] == Pass.FORWARD, piece, counts[of] - 1 - piece)
    begins, ends = _bounds(cuts)
    result = Lanes(
        rank=rank[of],
        kind=kind[of],
        stage=stage[of],
        microbatch=microbatch[of],
        begin=np.where(cut[of], begins[stage[of], number], begins[stage[of], 0]),
        end=np.where(cut[of], ends[stage[of], number], ends[stage[of], pieces[stage[of]] - 1]),
        cut=cut[of],
        first=piece == 0,
        last=piece == counts[of] - 1,
        slot=FIRST_SLOT + SLOTS * (1 + slot[of] * counts.max() + piece),
    )
    if plan.schedule == "gpipe" and plan.stages > 1:
        # where a lane turns from forward to backward it waits for what it has sent
        turns = np.flatnonzero((result.kind[:-1] == Pass.FORWARD) & (result.kind[1:] != Pass.FORWARD)) + 1
        result = _with_waits(result, turns, TURN, result.slot[turns - 1] + SLOTS // 2)
    return _with_waits(result, np.searchsorted(result.rank, np.arange(plan.stages)), BEGIN, FIRST_SLOT)


def _completes(kind: Numbers, stage: Numbers) -> Flags:
    """Whether a pass is the last that makes gradients of a stage's weights, and makes all its gradients together."""
    making = np.flatnonzero((kind == Pass.BACKWARD) | (kind == Pass.WEIGHT))
    latest = np.full(stage.max() + 1, -1)
    np.maximum.at(latest, stage[making], making)
    result = np.zeros(len(kind), dtype=np.bool_)
    result[latest] = kind[latest] == Pass.BACKWARD
    return result


def _bounds(cuts: Sequence[Sequence[range]]) -> tuple[Numbers, Numbers]:
    """Begins and ends of all stages' pieces, each of shape (stages, pieces); zero where a stage has fewer."""
    most = max(map(len, cuts))
    padded = [[*ranges, *[range(0)] * (most - len(ranges))] for ranges in cuts]
    begins, ends = (np.array([[getattr(one, bound) for one in ranges] for ranges in padded]) for bound in ("start", "stop"))
    return begins, ends


def _with_waits(tasks: Lanes, before: Numbers, kind: int, slot: Any) -> Lanes:
    """With tasks that only wait `before` those of these numbers."""
    none = {"kind": kind, "stage": -1, "microbatch": -1} | dict.fromkeys(("begin", "end"), 0)
    values = {**none, "rank": tasks.rank[before], "cut": False, "first": False, "last": False, "slot": slot}
    return Lanes(**{name: np.insert(column, before, values[name]) for name, column in tasks._asdict().items()})
