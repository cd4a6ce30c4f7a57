"""Passes of a pipeline, which stage a rank's chunk is, and when passes start that follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Literal, NamedTuple

ScheduleName = Literal[
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_1p",
    "zb_2p",
    "interleaved_zero_bubble",
    "zb_v",
    "dualpipe_v",
]
V_SHAPED: Final[frozenset[ScheduleName]] = frozenset({"zb_v", "dualpipe_v"})


class Pass(IntEnum):
    """What a rank does to one microbatch in one chunk."""

    FORWARD = 0
    BACKWARD = 1  # gradients of input and weights together
    INPUT = 2  # the gradient of the input alone
    WEIGHT = 3  # the gradient of the weights alone


class PassTimes(NamedTuple):
    """What the orders that are searched for weigh: seconds of one chunk's passes and of a message, and which share of its
    activations a microbatch still holds once the gradient of the input is made and that of the weights is not."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    send: float = 0.0
    kept: float = 1.0


EQUAL: Final = PassTimes()

# one pass of a rank: kind, chunk, microbatch
Step = tuple[Pass, int, int]
Lane = list[Step]


def stage_of(schedule: ScheduleName, ranks: int, rank: int, chunk: int) -> int:
    """The stage of the model, 0 … ranks · chunks − 1, that is a rank's chunk: stages go round the ranks in loops, or down the
    ranks and up again where the schedule is V-shaped."""
    if schedule in V_SHAPED and chunk:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank


class StageOrder:
    """Who follows whom: stages by rank and chunk, and for each stage whether a message takes its result to the next."""

    def __init__(self, schedule: ScheduleName, ranks: int, chunks: int) -> None:
        self.of = [[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)]
        home = {stage: rank for rank, own in enumerate(self.of) for stage in own}
        self.last = ranks * chunks - 1
        self.sends = [home[stage] != home[stage + 1] for stage in range(self.last)]


def starts(
    stages: StageOrder, lanes: Sequence[Lane], microbatches: int, took: Mapping[Pass, float], send: float
) -> list[list[float]]:
    """When each pass of each rank starts where it waits for nothing but what it follows; took: by kind of pass.

    A forward pass follows that of the stage before it, a backward pass that of the stage behind it, or at the last stage its
    forward pass; `send` later where a message is between them. Ranks begin at 0.
    """
    last = stages.last
    forward: list[list[float | None]] = [[None if stage else 0.0] * microbatches for stage in range(last + 1)]
    backward: list[list[float | None]] = [[None] * microbatches for _ in range(last + 1)]
    result: list[list[float]] = [[] for _ in lanes]
    now = [0.0] * len(lanes)
    moved = True
    while moved:
        moved = False
        for rank, lane in enumerate(lanes):
            began = result[rank]
            for index in range(len(began), len(lane)):
                kind, chunk, microbatch = lane[index]
                stage = stages.of[rank][chunk]
                arrived = 0.0 if kind == Pass.WEIGHT else (backward if kind else forward)[stage][microbatch]
                if arrived is None:
                    break
                start = max(now[rank], arrived)
                began.append(start)
                now[rank] = end = start + took[kind]
                moved = True
                if kind == Pass.FORWARD and stage == last:
                    backward[stage][microbatch] = end
                elif kind == Pass.FORWARD:
                    forward[stage + 1][microbatch] = end + send * stages.sends[stage]
                elif kind != Pass.WEIGHT and stage:
                    backward[stage - 1][microbatch] = end + send * stages.sends[stage - 1]
    assert all(len(began) == len(lane) for began, lane in zip(result, lanes, strict=True)), "ranks wait for each other"
    return result
