"""The boxes of a timeline. Boxes too small to be distinguishable are merged."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# number of boxes that begin in one cell of a track and are drawn separately
_MOST: Final = 12


class TimelineBoxes(NamedTuple):
    """Columns with a row for each box. track: boxes of different kinds in one track do not overlap. number: number of spans
    that the box represents."""

    track: NDArray[np.int64]
    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    start_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    number: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> TimelineBoxes:
        """The boxes that a mask selects."""
        return self._replace(**{name: column[chosen] for name, column in self._asdict().items()})

    def and_(self, more: TimelineBoxes) -> TimelineBoxes:
        """These boxes followed by others."""
        columns = {name: np.concatenate([column, getattr(more, name)]) for name, column in self._asdict().items()}
        return self._replace(**columns)


def merged(boxes: TimelineBoxes, cell_ms: float) -> TimelineBoxes:
    """Merges boxes where more than a few begin in a cell of a track: one for each kind and chunk, as long as these together.
    Boxes longer than a cell are kept, so that the number of boxes in a track is bounded."""
    crowd = crowded(boxes, cell_ms, _MOST)
    return boxes.where(~crowd).and_(summed(boxes.where(crowd), cell_ms)) if crowd.any() else boxes


def crowded(boxes: TimelineBoxes, cell_ms: float, most: int) -> NDArray[np.bool_]:
    """Which boxes are narrower than a cell and begin in one with more than `most` of these."""
    if not cell_ms:
        return np.zeros(len(boxes.track), dtype=bool)
    cell = _cells(boxes, cell_ms)
    narrow = boxes.end_ms - boxes.start_ms < cell_ms
    crowd: NDArray[np.bool_] = narrow & (np.bincount(cell, weights=narrow)[cell] > most)
    return crowd


def _cells(boxes: TimelineBoxes, cell_ms: float) -> NDArray[np.int64]:
    """The cell in which each box begins, numbered over all tracks."""
    column = (boxes.start_ms // cell_ms).astype(np.int64)
    cell: NDArray[np.int64] = np.unique(np.stack([boxes.track, column]), axis=1, return_inverse=True)[1].ravel()
    return cell


def summed(boxes: TimelineBoxes, cell_ms: float) -> TimelineBoxes:
    """One box for each kind and chunk in a cell, in order, from the first start in the cell on."""
    keys = np.stack([_cells(boxes, cell_ms), boxes.kind, boxes.chunk])
    (cells, kind, chunk), first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    group = group.ravel()
    begins_ms, ends_ms = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    np.minimum.at(begins_ms, group, boxes.start_ms)
    np.maximum.at(ends_ms, group, boxes.end_ms)
    # overlapped communication may overlap itself
    lengths_ms = np.minimum(np.bincount(group, weights=boxes.end_ms - boxes.start_ms), ends_ms - begins_ms)
    heads = np.flatnonzero(np.diff(cells, prepend=-1))
    sizes = np.diff(heads, append=len(cells))
    before_ms = np.cumsum(lengths_ms) - lengths_ms
    start_ms = np.repeat(np.minimum.reduceat(begins_ms, heads) - before_ms[heads], sizes) + before_ms
    return TimelineBoxes(boxes.track[first], kind, chunk, start_ms, start_ms + lengths_ms, np.bincount(group))
