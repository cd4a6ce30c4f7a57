"""Boxes: what a timeline draws of a step; where there are more of them than can be told apart, several are drawn as one."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# of boxes that begin within one cell of a lane, so many are drawn each by itself
_MOST: Final = 12


class TimelineBoxes(NamedTuple):
    """Columns, a row for each box. lane: those of one lane that are of different kinds do not overlap. number: of spans that
    it stands for."""

    lane: NDArray[np.int64]
    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    start_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    number: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> TimelineBoxes:
        return self._replace(**{name: column[chosen] for name, column in self._asdict().items()})

    def and_(self, more: TimelineBoxes) -> TimelineBoxes:
        columns = {name: np.concatenate([column, getattr(more, name)]) for name, column in self._asdict().items()}
        return self._replace(**columns)


def merged(boxes: TimelineBoxes, cell_ms: float) -> TimelineBoxes:
    """`boxes`, but where more than a few begin within a cell of a lane, one for each kind and chunk of them, as long as these
    together. Those longer than a cell stay as they are, so that a lane has a few boxes for each cell however long it is."""
    if not cell_ms:
        return boxes
    column = (boxes.start_ms // cell_ms).astype(np.int64)
    cell = np.unique(np.stack([boxes.lane, column]), axis=1, return_inverse=True)[1].ravel()
    narrow = boxes.end_ms - boxes.start_ms < cell_ms
    crowded = narrow & (np.bincount(cell, weights=narrow)[cell] > _MOST)
    return boxes.where(~crowded).and_(_summed(boxes.where(crowded), cell[crowded])) if crowded.any() else boxes


def _summed(boxes: TimelineBoxes, cell: NDArray[np.int64]) -> TimelineBoxes:
    """One box for each kind and chunk in a cell, in their order, one after another from the cell's first start on."""
    keys = np.stack([cell, boxes.kind, boxes.chunk])
    (cells, kind, chunk), first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    group = group.ravel()
    begins_ms, ends_ms = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    np.minimum.at(begins_ms, group, boxes.start_ms)
    np.maximum.at(ends_ms, group, boxes.end_ms)
    # what moves beside may overlap
    lengths_ms = np.minimum(np.bincount(group, weights=boxes.end_ms - boxes.start_ms), ends_ms - begins_ms)
    heads = np.flatnonzero(np.diff(cells, prepend=-1))
    sizes = np.diff(heads, append=len(cells))
    before_ms = np.cumsum(lengths_ms) - lengths_ms
    start_ms = np.repeat(np.minimum.reduceat(begins_ms, heads) - before_ms[heads], sizes) + before_ms
    return TimelineBoxes(boxes.lane[first], kind, chunk, start_ms, start_ms + lengths_ms, np.bincount(group))
