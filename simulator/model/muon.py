"""Muon: the matrices of blocks whose momentum it orthogonalises, and the products by which it does so (Keller Jordan, "Muon: an
optimizer for hidden layers in neural networks", 2024; arXiv 2502.16982)."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul

# Iterations of Newton and Schulz, and bytes of an element of the momentum in them.
ITERATIONS: Final = 5
NARROW_BYTES: Final = 2


def matrices(layer: Layer) -> tuple[Matmul, ...]:
    """The products with the trained matrices of a block; none of embeddings and output heads, which Adam updates."""
    if layer.pinned_to_end:
        return ()
    return tuple(one for one in layer.operators if isinstance(one, Matmul) and one.weight_gradient)


def matrix_elements(layer: Layer) -> int:
    """Number of elements of these matrices."""
    return sum(product.weights for product in matrices(layer))


def newton_schulz(layer: Layer) -> tuple[Matmul, ...]:
    """The products of all iterations over a layer's matrices: of X with its transpose, of that with itself, and of a
    combination of both with X, where X has no more rows than columns."""
    result: list[Matmul] = []
    for matrix in matrices(layer):
        rows, columns = sorted((matrix.columns, matrix.inner))
        for inner, written in ((columns, rows), (rows, rows), (rows, columns)):
            result.append(Matmul("newton schulz", rows, written, inner, ITERATIONS * matrix.count))
    return tuple(result)
