"""Passes of a pipeline, the stages of each rank's chunks, and start times of dependent passes."""

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
    """Kind of work of a rank on one microbatch in one chunk."""

    FORWARD = 0
    BACKWARD = 1  # gradients of input and weights together
    INPUT = 2  # the gradient of the input alone
    WEIGHT = 3  # the gradient of the weights alone


class PassTimes(NamedTuple):
    """Seconds of one chunk's passes and of a message, for schedules that search for an order. kept: share of a microbatch's
    activations that remains after the input gradient until the weight gradient is computed."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    send: float = 0.0
    kept: float = 1.0


EQUAL: Final = PassTimes()

# One pass of a rank: kind, chunk, microbatch.
Step = tuple[Pass, int, int]
PassList = list[Step]


def stage_of(schedule: ScheduleName, ranks: int, rank: int, chunk: int) -> int:
    """Stage of the model (0 … ranks · chunks − 1) of a rank's chunk. Stages go round the ranks in loops, or down the ranks and
    up again in V-shaped schedules."""
    if schedule in V_SHAPED and chunk:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank


class StageOrder:
    """Stages by rank and chunk, and for each stage whether its result is sent to another rank for the next stage."""

    def __init__(self, schedule: ScheduleName, ranks: int, chunks: int) -> None:
        self.of = [[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)]
        rank_of = {stage: rank for rank, own in enumerate(self.of) for stage in own}
        self.last = ranks * chunks - 1
        self.sends = [rank_of[stage] != rank_of[stage + 1] for stage in range(self.last)]


def starts(
    stages: StageOrder, ranks_passes: Sequence[PassList], microbatches: int, pass_times: Mapping[Pass, float], send: float
) -> list[list[float]]:
    """Start times of each pass of each rank if passes wait for dependencies only. pass_times: by kind of pass.

    A forward pass follows the previous stage's, a backward pass the next stage's, or on the last stage its forward pass; plus
    `send` if a message is between them. Ranks begin at 0.
    """
    last = stages.last
    forward: list[list[float | None]] = [[None if stage else 0.0] * microbatches for stage in range(last + 1)]
    backward: list[list[float | None]] = [[None] * microbatches for _ in range(last + 1)]
    result: list[list[float]] = [[] for _ in ranks_passes]
    now = [0.0] * len(ranks_passes)
    progressed = True
    while progressed:
        progressed = False
        for rank, rank_passes in enumerate(ranks_passes):
            start_times = result[rank]
            for index in range(len(start_times), len(rank_passes)):
                kind, chunk, microbatch = rank_passes[index]
                stage = stages.of[rank][chunk]
                ready = 0.0 if kind == Pass.WEIGHT else (backward if kind else forward)[stage][microbatch]
                if ready is None:
                    break
                start = max(now[rank], ready)
                start_times.append(start)
                now[rank] = end = start + pass_times[kind]
                progressed = True
                if kind == Pass.FORWARD and stage == last:
                    backward[stage][microbatch] = end
                elif kind == Pass.FORWARD:
                    forward[stage + 1][microbatch] = end + send * stages.sends[stage]
                elif kind != Pass.WEIGHT and stage:
                    backward[stage - 1][microbatch] = end + send * stages.sends[stage - 1]
    assert all(len(start_times) == len(rank_passes) for start_times, rank_passes in zip(result, ranks_passes, strict=True)), (
        "ranks wait for each other"
    )
    return result
