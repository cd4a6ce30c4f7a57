"""Stages of pipelines: the names of schedules and the numbers that they support, the stage of each chunk, and how layers are
divided."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, ValidationError, WrapValidator

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, block_range, cut_into_stages

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
# Schedules whose backward passes include gradients of weights; the others compute some of these in separate passes.
WHOLE: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
# Schedules whose order is searched for the times of passes.
SEARCHED: Final[frozenset[ScheduleName]] = frozenset({"zb_1p", "zb_2p"})
# Schedules whose stages go round the ranks several times.
LOOPED: Final[frozenset[ScheduleName]] = frozenset({"interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble"})

_Blocks = Annotated[tuple[Width, ...], Field(min_length=1, max_length=100_000)]


def _one_error(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Replaces the errors of all alternatives by one error."""
    try:
        return validate(value)
    except ValidationError:
        raise ValueError(
            f"unknown balance {str(value)[:60]!r}; give layers, time, memory, products, or blocks per stage such as [3, 2]"
        ) from None


Balance = Annotated[Literal["layers", "time", "memory", "products"] | _Blocks, WrapValidator(_one_error)]


def stage_of(schedule: ScheduleName, ranks: int, rank: int, chunk: int) -> int:
    """Stage of the model (0 … ranks · chunks − 1) of a rank's chunk. Stages go round the ranks in loops, or down the ranks and
    up again in V-shaped schedules."""
    if schedule in V_SHAPED and chunk:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank


def rounds(ranks: int, microbatches: int) -> int:
    """Number of rounds, of equally many microbatches each, in which looped schedules go through the chunks."""
    return max(1, microbatches // ranks)


def check_schedule(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> None:
    """Checks that the schedule supports these numbers; raises FieldError with the nearest supported ones."""
    if schedule in LOOPED:
        fits, needs, give = chunks > 1, "several chunks", 2
    elif schedule in V_SHAPED:
        fits, needs, give = chunks == 2, "2 chunks", 2
    else:
        fits, needs, give = chunks == 1, "one chunk", 1
    if not fits:
        raise FieldError(("strategy", "chunks"), f"{schedule} needs {needs} per rank, got {chunks}; give {give}")
    if schedule == "dualpipe_v" and microbatches < 2 * ranks:
        message = f"dualpipe_v needs at least two microbatches for each rank, got {microbatches} for {ranks}; give {2 * ranks}"
        raise FieldError(("strategy", "microbatches"), message)
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble") and not _has_rounds(ranks, microbatches):
        nearest = _nearest(microbatches, lambda number: _has_rounds(ranks, number))
        rule = f"{schedule} runs its microbatches in {rounds(ranks, microbatches)} equal rounds"
        raise FieldError(("strategy", "microbatches"), f"{rule}, got {microbatches}; give {nearest}")


def _has_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % rounds(ranks, microbatches) == 0


def _nearest(number: int, works: Callable[[int], bool]) -> str:
    below = next(lower for lower in range(number - 1, 0, -1) if works(lower))
    above = next(higher for higher in range(number + 1, 2 * number) if works(higher))
    return f"{below} or {above}"


def cut_by_blocks(layers: Sequence[Layer], stages: int, blocks: Balance, counted: Counted = NOT_COUNTED) -> list[range]:
    """Partition into given, or else equal, numbers of blocks. Raises FieldError if there are more stages than blocks."""
    if not isinstance(blocks, tuple):
        return cut_into_stages(layers, stages, counted)
    first, last = block_range(layers)
    if len(blocks) != stages:
        raise FieldError(("strategy", "balance"), f"{len(blocks)} numbers for {stages} stages of the model; give one per stage")
    if sum(blocks) != last - first:
        message = f"they add up to {sum(blocks)} blocks, but the model has {last - first}; change the numbers"
        raise FieldError(("strategy", "balance"), message)
    bounds = [first, *(first + np.cumsum(blocks)).tolist()]
    bounds[0], bounds[-1] = 0, len(layers)
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
