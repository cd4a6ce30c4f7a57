"""Sharding of parameters over servers, and buckets that are sent and updated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.buckets import bucket_bounds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.parameter_server import Sharding, Sparse, is_embedding

# Bytes of the index of an embedding's row.
_INDEX_BYTES: Final = 8


class Bucket(NamedTuple):
    """Parameters that are pushed and pulled together; arrays of shape (servers,), zero for servers without parameters.

    layer: the first layer with parameters in the bucket; for the first bucket, the first of all layers. sent_bytes: bytes of a
    push, and of a pull. gradient_bytes: bytes of gradients among them. touched: parameters that one push changes;
    touched_by_all: parameters that the pushes of all workers change.
    """

    layer: int
    sent_bytes: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
    touched: NDArray[np.float64]
    touched_by_all: NDArray[np.float64]

    @property
    def all_bytes(self) -> float:
        """Bytes of the gradients on all servers."""
        return float(self.gradient_bytes.sum())


def buckets(
    layers: Sequence[Layer], servers: int, sharding: Sharding, element_bytes: int, limit_bytes: float, sparse: Sparse | None,
    workers: int,
) -> list[Bucket]:  # fmt: skip
    """Buckets of the parameters of `layers`, in the order of layers.

    Buckets are filled from the last tensor on, in the order in which gradients are computed, and close once their push has
    `limit_bytes` or more.
    """
    first_layer, elements, share, row_elements = np.array(list(_tensors(layers, sparse))).reshape(-1, 4).T
    on_server = _server_shares(elements, servers, sharding)
    touched = elements * share
    sent_bytes = touched * (element_bytes + _INDEX_BYTES / row_elements)
    by_all = elements * np.minimum(1.0, workers * share)
    columns = [(column[:, None] * on_server) for column in (sent_bytes, touched * element_bytes, touched, by_all)]
    filled_bytes = [0.0, *np.cumsum(sent_bytes[::-1]).tolist()]
    ends = [len(touched) - bound for bound in bucket_bounds(filled_bytes, 0, len(touched), limit_bytes, limit_bytes)]
    return [
        Bucket(int(first_layer[begin]) if begin else 0, *(column[begin:end].sum(axis=0) for column in columns))
        for begin, end in itertools.pairwise(ends[::-1])
    ]


def _tensors(layers: Sequence[Layer], sparse: Sparse | None) -> Iterator[tuple[int, float, float, float]]:
    """Of each parameter tensor of a model, in order: layer, elements, share that a worker touches, and elements per indexed
    row, infinite without index."""
    for index, layer in enumerate(layers):
        table = layer.tensors.index(max(layer.tensors)) if sparse and is_embedding(layer) else -1
        for number, elements in enumerate(layer.tensors):
            if sparse and number == table:
                following = layers[index + 1].tensors if index + 1 < len(layers) else ()
                yield index, float(elements), sparse.rows, float(math.gcd(*layer.tensors, *following))
            else:
                yield index, float(elements), 1.0, math.inf


def _server_shares(elements: NDArray[np.float64], servers: int, sharding: Sharding) -> NDArray[np.float64]:
    """Share of each tensor on each server, shape (tensors, servers)."""
    if sharding == "bytes":
        return np.full((len(elements), servers), 1.0 / servers)
    return np.eye(servers)[tensor_owners(elements, servers, sharding)]


def tensor_owners(elements: ArrayLike, servers: int, sharding: Sharding) -> NDArray[np.int64]:
    """The server of each whole tensor: the next in turn, or the one with the fewest elements so far. elements: of tensors."""
    sizes = np.asarray(elements, dtype=np.float64)
    owner = np.arange(len(sizes)) % servers
    if sharding == "tensor":
        stored = np.zeros(servers)
        for number, size in enumerate(sizes):
            owner[number] = stored.argmin()
            stored[owner[number]] += size
    return owner
