"""Sharding of parameters over servers, and buckets that are sent and updated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.buckets import bucket_bounds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recommender.lookups import INDEX_BYTES, RowTable
from scaleproof.simulator.parallelism.parameter_server import (
    ParameterServer,
    Sharding,
    Sparse,
    sent_rows,
    sent_tables,
    touched_rows,
)
from scaleproof.simulator.parallelism.strategy import Strategy


class Bucket(NamedTuple):
    """Parameters that are pushed and pulled together; arrays of shape (servers,), zero for servers without parameters.

    layer: the first layer with parameters in the bucket; for the first bucket, the first of all layers. pushed_bytes: bytes of
    a push, with the numbers of its rows and of those that the worker wants. pulled_bytes: bytes of a pull, and of gradients in
    a push. touched: parameters that one push changes;
    touched_by_all: parameters that the pushes of all workers change. stored: all parameters.
    """

    layer: int
    pushed_bytes: NDArray[np.float64]
    pulled_bytes: NDArray[np.float64]
    touched: NDArray[np.float64]
    touched_by_all: NDArray[np.float64]
    stored: NDArray[np.float64]

    @property
    def all_bytes(self) -> float:
        """Bytes of the gradients on all servers."""
        return float(self.pulled_bytes.sum())


def buckets(
    layers: Sequence[Layer], servers: int, sharding: Sharding, element_bytes: int, limit_bytes: float, sparse: Sparse | None,
    workers: int, samples: float,
) -> list[Bucket]:  # fmt: skip
    """Buckets of the parameters of `layers`, in the order of layers. samples: of a worker in a step.

    Buckets are filled from the last tensor on, in the order in which gradients are computed, and close once their push has
    `limit_bytes` or more.
    """
    tensors = np.array(list(_tensors(layers, sparse, workers, samples)))
    first_layer, elements, touched, by_all, row_elements = tensors.reshape(-1, 5).T
    on_server = _server_shares(elements, servers, sharding)
    pulled_bytes, numbers_bytes = touched * element_bytes, touched / row_elements * INDEX_BYTES
    pushed_bytes = pulled_bytes + 2 * numbers_bytes
    columns = [(column[:, None] * on_server) for column in (pushed_bytes, pulled_bytes, touched, by_all, elements)]
    filled_bytes = [0.0, *np.cumsum((pulled_bytes + numbers_bytes)[::-1]).tolist()]
    ends = [len(touched) - bound for bound in bucket_bounds(filled_bytes, 0, len(touched), limit_bytes, limit_bytes)]
    return [
        Bucket(int(first_layer[begin]) if begin else 0, *(column[begin:end].sum(axis=0) for column in columns))
        for begin, end in itertools.pairwise(ends[::-1])
    ]


def _tensors(
    layers: Sequence[Layer], sparse: Sparse | None, workers: int, samples: float
) -> Iterator[tuple[int, float, float, float, float]]:
    """Of each parameter tensor of a model, in order: layer, elements, elements that one worker and that all touch, and elements
    per indexed row, infinite without index."""
    for index, layer in enumerate(layers):
        tables = {table.tensor: table for table in sent_rows(layers, index, sparse)}
        for number, elements in enumerate(layer.tensors):
            if (table := tables.get(number)) is None:
                yield index, elements, elements, elements, math.inf
                continue
            width = table.looked.width
            one, every = (width * touched_rows(table, sparse, samples, count) for count in (1, workers))
            # workers' layers have rows of it alone
            yield index, table.elements, one, every, width


def row_words(strategy: Strategy, layers: Sequence[Layer], samples: float) -> str:
    """Words for the rows of a user's module that a worker pushes and pulls in a step; empty without any."""
    if not isinstance(strategy, ParameterServer):
        return ""
    sparse = strategy.sparse
    tables = [table for table in sent_tables(layers, sparse) if table.name]
    if not tables:
        return ""
    touched = sum(touched_rows(table, sparse, samples) for table in tables)
    rows = sum(table.looked.distribution.rows for table in tables)
    text = f"a worker pushes and pulls {touched:,.0f} of {rows:,} rows of {_named(tables)}"
    if sparse is None or sparse.rows is None:
        lookups, skew = sum(table.looked.pooling for table in tables), 0.0 if sparse is None else sparse.skew
        how = f"frequent by Zipf's law with exponent {skew:g}" if skew else "equally frequent"
        text += (
            f": {lookups:,.4g} lookups a sample, as in the example, of rows that are {how}; the data decide how many there "
            "are and which rows repeat, and strategy.sparse.rows gives the result"
        )
    unforeseen = [table for table in tables if not table.is_foreseen]
    if unforeseen:
        text += f"; rows of {_named(unforeseen)} depend on parameters or random numbers, so that no worker can request them"
    return text


def _named(tables: Sequence[RowTable]) -> str:
    more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
    return ", ".join(table.name.removesuffix(".weight") for table in tables[:3]) + more


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
