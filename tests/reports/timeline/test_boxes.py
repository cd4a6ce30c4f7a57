"""Boxes of a timeline: crowded ones are merged with equal total time, others are unchanged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scaleproof.reports.timeline.boxes import TimelineBoxes, merged

CELL_MS = 1.0


def boxes_of(lengths_ms: list[float], kinds: list[int], tracks: int = 1) -> TimelineBoxes:
    """Boxes one after another in each of N tracks."""
    ends_ms = np.cumsum(lengths_ms)
    kind = np.resize(np.array(kinds, dtype=np.int64), len(ends_ms))
    columns = (kind, kind % 2, ends_ms - lengths_ms, ends_ms, np.ones(len(ends_ms), dtype=np.int64))
    return TimelineBoxes(np.repeat(np.arange(tracks), len(ends_ms)), *(np.tile(column, tracks) for column in columns))


def sums(boxes: TimelineBoxes, values: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """Of `values`, by track, kind and chunk."""
    keys = list(zip(boxes.track.tolist(), boxes.kind.tolist(), boxes.chunk.tolist(), strict=True))
    return {key: float(sum(value for at, value in zip(keys, values, strict=True) if at == key)) for key in keys}


LENGTHS = st.lists(st.sampled_from([0.0, 0.01, 0.03, 0.5, 2.5]), min_size=1, max_size=200)
KINDS = st.lists(st.integers(-1, 3), min_size=1, max_size=5)


@given(LENGTHS, KINDS)
def test_merging_keeps_the_time_of_each_kind(lengths_ms: list[float], kinds: list[int]) -> None:
    boxes = boxes_of(lengths_ms, kinds, tracks=2)
    few = merged(boxes, CELL_MS)
    assert sums(few, few.number.astype(float)) == sums(boxes, boxes.number.astype(float))
    spent_ms, before_ms = (sums(some, some.end_ms - some.start_ms) for some in (few, boxes))
    assert all(abs(spent_ms[key] - before_ms[key]) < 1e-9 for key in before_ms)


@given(LENGTHS, KINDS)
def test_merged_boxes_of_a_track_do_not_overlap(lengths_ms: list[float], kinds: list[int]) -> None:
    few = merged(boxes_of(lengths_ms, kinds), CELL_MS)
    few = few.where(few.end_ms - few.start_ms > 1e-6)
    order = np.argsort(few.start_ms)
    assert (few.start_ms[order][1:] >= few.end_ms[order][:-1] - 1e-9).all()
    assert few.end_ms.max(initial=0.0) <= sum(lengths_ms) + 1e-9


@given(st.integers(1, 20_000), KINDS)
def test_merging_bounds_the_number_of_boxes_per_cell(count: int, kinds: list[int]) -> None:
    cells = 100
    few = merged(boxes_of([cells * CELL_MS / count] * count, kinds), CELL_MS)
    assert len(few.track) <= (cells + 1) * 12


def test_boxes_that_are_not_crowded_are_unchanged() -> None:
    boxes = boxes_of([0.4, 0.1, 3.0, 0.5] * 10, [0, 1])
    for before, after in zip(boxes, merged(boxes, CELL_MS), strict=True):
        assert (before == after).all()
