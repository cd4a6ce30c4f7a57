"""Fit of a smooth correction, on a coarse grid of rows, columns and inner dimension, to errors of predicted products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.device.kernels.products import MOST_FALL, NODES, node_weights
from scaleproof.validator.kernels.shapes import Floats

_PER_MILLE: Final = 1000
# Weights of differences between neighbouring nodes and of the nodes themselves, in measured products; chosen on left-out
# halves of the published products.
_SMOOTH: Final = 0.3
_SMALL: Final = 0.1
# Errors of the logarithm count as they are beyond about this, and squared below.
_ROBUST: Final = 0.05
_ROUNDS: Final = 40
# Weight of a limit on the fall between two nodes, where a solution exceeds it.
_STIFF: Final = 1e4


def fitted_correction(m: Floats, n: Floats, k: Floats, errors: Callable[[str], Floats]) -> str:
    """A correction of products. errors: logarithms of measured over predicted times with a correction."""
    none = errors("")
    # the part of each time that a correction changes
    changed = (none - errors(_text(np.full(NODES**3, 10.0)))) / 0.01
    design = np.zeros((len(m), NODES**3))
    places, shares = node_weights(m, n, k)
    np.add.at(design, (np.arange(len(m)), places), shares * changed)
    falls = _differences()
    smooth = _SMOOTH * falls.T @ falls + _SMALL * np.eye(NODES**3)
    limit = -MOST_FALL / _PER_MILLE
    weights: Floats = np.ones(len(m))
    stiff: Floats = np.zeros(len(falls))
    nodes: Floats = np.zeros(NODES**3)
    for _ in range(_ROUNDS):
        normal = design.T @ (design * weights[:, None]) + smooth + falls.T @ (falls * stiff[:, None])
        nodes = np.linalg.solve(normal, design.T @ (weights * none) + falls.T @ (stiff * limit)).astype(np.float64)
        weights = 1 / np.sqrt(1 + ((none - design @ nodes) / _ROBUST) ** 2)
        stiff = np.where(falls @ nodes < limit, _STIFF, stiff)
    return _text(_limited(np.round(_PER_MILLE * nodes)))


def _differences() -> Floats:
    """Rows that give the difference of the value at each node from that at the node before it, along each axis."""
    index = np.arange(NODES**3).reshape(NODES, NODES, NODES)
    rows = []
    for axis in range(index.ndim):
        moved = np.moveaxis(index, axis, 0)
        for before, after in zip(moved[:-1].ravel(), moved[1:].ravel(), strict=True):
            row = np.zeros(index.size)
            row[before], row[after] = -1, 1
            rows.append(row)
    return np.array(rows)


def _limited(nodes: Floats) -> Floats:
    """The nodes, raised where they fall by more than the limit from the node before them."""
    grid = nodes.reshape(NODES, NODES, NODES).copy()
    for axis in range(grid.ndim):
        moved = np.moveaxis(grid, axis, 0)
        for place in range(1, NODES):
            moved[place] = np.maximum(moved[place], moved[place - 1] - MOST_FALL)
    return grid.ravel()


def _text(nodes: Floats) -> str:
    """Nodes in per mille as a table with a line for each number of rows and of columns."""
    return "\n".join(" ".join(f"{int(value)}" for value in row) for row in nodes.reshape(-1, NODES))
