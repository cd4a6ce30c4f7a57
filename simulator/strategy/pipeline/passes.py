"""Passes of a pipeline, the stages of each rank's chunks, and start times of dependent passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.parallelism.stages import ScheduleName, stage_of


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

# The passes of a rank in order, shape (passes, 3): kind, chunk, microbatch.
Passes = NDArray[np.int64]
# A kind of pass and its chunk. The microbatch is implied, since each kind takes a chunk's microbatches in order.
Turn = tuple[Pass, int]


def numbered(turns: Iterable[Turn], microbatches: int) -> Passes:
    """Assigns microbatches to turns; turns beyond the last microbatch are dropped."""
    kind, chunk = np.fromiter(chain.from_iterable(turns), dtype=np.int64).reshape(-1, 2).T
    microbatch = np.empty_like(kind)
    for own in (chunk == number for number in range(int(chunk.max()) + 1)):
        for taken in (own & (kind == Pass.FORWARD), own & ((kind == Pass.BACKWARD) | (kind == Pass.INPUT))):
            microbatch[taken] = np.arange(np.count_nonzero(taken))
        microbatch[own & (kind == Pass.WEIGHT)] = microbatch[own & (kind == Pass.INPUT)]
    return np.stack([kind, chunk, microbatch], axis=1)[microbatch < microbatches]


def starts(
    schedule: ScheduleName, chunks: int, ranks_passes: Sequence[Passes], microbatches: int, pass_times: Mapping[Pass, float],
    send: float,
) -> list[list[float]]:  # fmt: skip
    """Start times of each pass of each rank if passes wait for dependencies only. pass_times: by kind of pass.

    A forward pass follows the previous stage's, a backward pass the next stage's, or on the last stage its forward pass; plus
    `send` if a message is between them. Ranks begin at 0.
    """
    ranks = len(ranks_passes)
    stages = [[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)]
    rank_of = {stage: rank for rank, rank_stages in enumerate(stages) for stage in rank_stages}
    last, unused = ranks * chunks - 1, 2 * ranks * chunks
    crosses = [rank_of[stage] != rank_of[stage + 1] for stage in range(last)]
    # A microbatch passes all stages forward and then backward; the result of each pass is the input of the next one on its way.
    # Weight gradients wait for the first input, which is there; results that no pass waits for are put behind the last input.
    sends = send * np.array([*crosses, False, *reversed(crosses), False])
    inputs: list[float | None] = [0.0] * microbatches + [None] * (unused * microbatches)
    durations = np.array([pass_times.get(kind, 0.0) for kind in Pass])
    columns: list[tuple[list[int], list[int], list[float], list[float]]] = []
    for own_stages, (kind, chunk, microbatch) in zip(stages, (passes.T for passes in ranks_passes), strict=True):
        stage = np.array(own_stages)[chunk]
        place = np.where(kind == Pass.FORWARD, stage, 2 * last + 1 - stage)
        needed = np.where(kind == Pass.WEIGHT, 0, place) * microbatches + microbatch
        given = np.where(kind == Pass.WEIGHT, unused, place + 1)
        made = given * microbatches + microbatch
        columns.append((needed.tolist(), made.tolist(), durations[kind].tolist(), sends[given - 1].tolist()))
    result: list[list[float]] = [[] for _ in ranks_passes]
    now = [0.0] * len(ranks_passes)
    progressed = True
    while progressed:
        progressed = False
        for rank, (needed, made, duration, delay) in enumerate(columns):
            start_times, end = result[rank], now[rank]
            for index in range(len(start_times), len(needed)):
                ready = inputs[needed[index]]
                if ready is None:
                    break
                start = max(end, ready)
                start_times.append(start)
                end = start + duration[index]
                inputs[made[index]] = end + delay[index]
                progressed = True
            now[rank] = end
    assert all(len(start_times) == len(passes) for start_times, passes in zip(result, ranks_passes, strict=True)), (
        "ranks wait for each other"
    )
    return result
