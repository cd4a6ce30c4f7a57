"""Sharding of parameters over servers, and buckets that are sent and updated together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.layers import Layer

Sharding = Literal["bytes", "tensor", "round_robin"]

# Bytes of the index of an embedding's row.
_INDEX_BYTES: Final = 8


class Sparse(Spec):
    """Workers push and pull only the rows of embeddings that their samples touch, each with an index of 8 bytes.

    Rows belong to the largest tensor of each layer that is called embedding; the row width is the greatest common divisor of
    all tensors of that layer and the next. Positions and token types are touched by every sample and stay dense. An output head
    that shares the embedding's weights has gradients for all rows: nothing is sparse then.
    """

    rows: float = Field(gt=0, le=1, description="share of an embedding's rows that a worker touches in a step")


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


class _Tensors(NamedTuple):
    """Parameter tensors of a model in order: layer, elements, share that a worker touches, and elements per indexed row
    (infinite without index); arrays of shape (tensors,)."""

    layer: NDArray[np.int64]
    elements: NDArray[np.float64]
    share: NDArray[np.float64]
    row: NDArray[np.float64]


def buckets(
    layers: Sequence[Layer], servers: int, sharding: Sharding, element_bytes: int, limit_bytes: float, sparse: Sparse | None,
    workers: int,
) -> list[Bucket]:  # fmt: skip
    """Buckets of the parameters of `layers`, in the order of layers.

    Buckets are filled from the last tensor on, in the order in which gradients are computed, and close once their push has
    `limit_bytes` or more.
    """
    tensors = _tensors(layers, sparse)
    on_server = _server_shares(tensors.elements, servers, sharding)
    touched = tensors.elements * tensors.share
    sent_bytes = touched * (element_bytes + _INDEX_BYTES / tensors.row)
    by_all = tensors.elements * np.minimum(1.0, workers * tensors.share)
    columns = [(column[:, None] * on_server) for column in (sent_bytes, touched * element_bytes, touched, by_all)]
    result, end, filled_bytes = [], len(touched), 0.0
    for begin in range(len(touched) - 1, -1, -1):
        filled_bytes += sent_bytes[begin]
        if filled_bytes >= limit_bytes or begin == 0:
            layer = int(tensors.layer[begin]) if begin else 0
            result.append(Bucket(layer, *(column[begin:end].sum(axis=0) for column in columns)))
            end, filled_bytes = begin, 0.0
    return result[::-1]


def has_embedding(layers: Sequence[Layer]) -> bool:
    """Whether the model has parameters that may be sparse."""
    return any(_is_embedding(layer) for layer in layers)


def _is_embedding(layer: Layer) -> bool:
    return layer.name.rpartition(".")[2] == "embedding" and bool(layer.tensors)


def _tensors(layers: Sequence[Layer], sparse: Sparse | None) -> _Tensors:
    layer, *columns = np.array(list(_tensor_columns(layers, sparse))).reshape(-1, len(_Tensors._fields)).T
    return _Tensors(layer.astype(np.int64), *columns)


def _tensor_columns(layers: Sequence[Layer], sparse: Sparse | None) -> Iterator[tuple[int, float, float, float]]:
    for index, layer in enumerate(layers):
        table = layer.tensors.index(max(layer.tensors)) if sparse and _is_embedding(layer) else -1
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
    owner = np.arange(len(elements)) % servers
    if sharding == "tensor":
        stored = np.zeros(servers)
        for number, size in enumerate(elements):
            owner[number] = stored.argmin()
            stored[owner[number]] += size
    return np.eye(servers)[owner]
