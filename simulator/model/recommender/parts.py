"""Parts of recommenders: lookups in replicated and in divided tables, with their exchanges, and multi-layer perceptrons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from scaleproof.simulator.model.layers import Layer, ModelSpec, Shard
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, SavedActivation
from scaleproof.simulator.model.recommender.lookups import INDEX_BYTES, Looked, Lookup, RowTable, state_bytes
from scaleproof.simulator.model.recommender.placement import TABLE_BYTES, EmbeddingTable, TablePart, Tables, each, place

# Name of the lookups of a model, in tables that are divided over workers or not.
LOOKUP: Final = "lookup"
MASK_BYTES: Final = 1


class Recommender(ModelSpec):
    """A model whose first layer looks up rows of embedding tables."""

    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=10_000)]


def lookups_of(layers: Sequence[Layer]) -> list[Lookup]:
    """The lookups of a model's layers."""
    return [operator for layer in layers for operator in layer.operators if isinstance(operator, Lookup)]


def looked_up(given: tuple[EmbeddingTable, ...], shard: Shard, tokens: int | None = None) -> Layer:
    """The lookups of the worker with the most, and the exchanges of indices, rows and gradients.

    tokens: number for which a sample looks up `pooling` rows each, with an output of their own; None for one output of all.
    """
    how, tables = shard.tables, each(given)
    replicated = [table for table in tables if how is None or not how.is_sharded(table)]
    result = _replicas(replicated, tokens or 1)
    if how is not None and len(replicated) < len(tables):
        result = _shards(place(given, how, shard.workers), tables, how, shard.workers, tokens) + result
    return result


def _replicas(tables: Sequence[EmbeddingTable], tokens: int) -> Layer:
    """Tables that each worker has whole, as parameters with dense gradients."""
    if not tables:
        return Layer()
    parts = tuple(Looked(table.distribution, table.dim, tokens * table.pooling) for table in tables)
    outputs = tokens * sum(table.dim for table in tables)
    lookup = Lookup(LOOKUP, outputs, outputs, outputs, outputs, parts)
    indices = SavedActivation("indices", _rounded_up(sum(part.pooling for part in parts)), INDEX_BYTES)
    tensors, own = tuple(table.rows * table.dim for table in tables), tuple(itertools.starmap(RowTable, enumerate(parts)))
    return Layer(operators=(lookup,), tensors=tensors, kept=(indices,), row_tables=own)


@dataclass(frozen=True)
class _Loads:
    """What the workers with the most have, per sample of one worker. outputs: elements of pooled rows, or of rows; lookups;
    bytes of parts with states."""

    outputs: int
    lookups: float
    stored_bytes: float


def _shards(
    parts: Sequence[TablePart], tables: Sequence[EmbeddingTable], how: Tables, workers: int, tokens: int | None
) -> Layer:
    """Tables that are divided over workers."""
    by_owner: dict[int, list[TablePart]] = {}
    for part in parts:
        by_owner.setdefault(part.owner, []).append(part)
    element_bytes, each_token = TABLE_BYTES[how.precision], tokens or 1
    # owners of ranges of rows send them one by one where each token has an output of its own (torchrec's
    # RwSequenceEmbeddingSharding)
    sends_rows = how.shard == "row" and tokens is not None

    def looked(part: TablePart) -> Looked:
        table = tables[part.table]
        return Looked(table.distribution, len(part.columns), each_token * table.pooling, len(part.rows) / table.rows)

    def loads(own: Sequence[TablePart]) -> _Loads:
        each = [looked(part) for part in own]
        rows = sum(one.pooling * one.share * one.width for one in each)
        return _Loads(
            workers * (_rounded_up(rows) if sends_rows else each_token * sum(one.width for one in each)),
            workers * sum(one.pooling * one.share for one in each),
            sum(part.elements * element_bytes + len(part.rows) * state_bytes(how.optimizer, len(part.columns)) for part in own),
        )

    busiest = max(by_owner.values(), key=lambda own: sum(looked(part).pooling * len(part.columns) for part in own))
    most, every = loads(busiest), [loads(own) for own in by_owner.values()]
    if sends_rows:
        pooled = _rounded_up(sum(looked(part).pooling * looked(part).share * len(part.columns) for part in parts))
    else:
        pooled = each_token * sum(len(part.columns) for part in parts) if how.shard != "row" else most.outputs
    lookup = Lookup(
        LOOKUP, most.outputs, most.outputs, most.outputs, most.outputs, tuple(map(looked, busiest)), workers, element_bytes,
        how.optimizer, how.cache if how.on == "host" else 1.0,
    )  # fmt: skip
    stored_bytes = max(one.stored_bytes for one in every)
    return Layer(
        operators=(lookup,),
        kept=(SavedActivation("indices", _rounded_up(most.lookups), INDEX_BYTES),),
        exchanges=_exchanges(how, workers, pooled, every, sends_rows) if workers > 1 else (),
        table_bytes=stored_bytes * (how.cache if how.on == "host" else 1.0),
        host_table_bytes=stored_bytes if how.on == "host" else 0.0,
    )


def _exchanges(how: Tables, workers: int, pooled: int, loads: Sequence[_Loads], sends_rows: bool) -> tuple[Exchange, ...]:
    """The exchange of indices, and those of pooled rows and of their gradients, in elements of a worker's samples.

    All-to-alls take as long as that of the worker that sends or receives the most. Rows are divided by all-to-alls of whole
    outputs or of their columns; where workers have ranges of rows, their sums are scattered, and gradients gathered, unless
    owners send rows one by one.
    """
    indices = [_rounded_up(one.lookups) for one in loads]
    most = max(indices)
    sent = [
        Exchange(
            "alltoall", most, False, hidden=how.overlap_input, axis="tables", element_bytes=INDEX_BYTES,
            one_way=_one_way(most, sum(indices) // workers, workers),
        )
    ]  # fmt: skip
    if how.shard == "row" and not sends_rows:
        scattered = Exchange("reduce_scatter", pooled, False, axis="tables")
        return (*sent, scattered, Exchange("all_gather", pooled, True, axis="tables"))
    # workers send as many outputs on average as each receives
    most = max(one.outputs for one in loads)
    one_way = _one_way(most, pooled, workers)
    outputs = (Exchange("alltoall", most, backward, axis="tables", one_way=one_way) for backward in (False, True))
    return (*sent, *outputs)


def _one_way(most: int, mean: int, workers: int) -> int:
    """Elements of the busiest worker's all-to-all that have no counterpart in the other direction.

    A worker moves all but the part of its own samples, 1/workers of `most`. In the other direction it moves what it needs of
    other workers: `mean` less its own part.
    """
    return max(0, most - max(0, workers * mean - most) // (workers - 1))


def mlp(
    name: str,
    widths: Sequence[int],
    rows: int = 1,
    *,
    reads_data: bool = False,
    drops: bool = False,
    ends_in_loss: bool = False,
) -> list[Layer]:
    """Linear layers with ReLU and dropout, named after the MLP; the last one of the model has the loss of clicks. rows: of a
    sample."""
    layers = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        is_loss, read, written = ends_in_loss and number == len(widths) - 2, rows * inputs, rows * outputs
        after = MemoryBound("click loss" if is_loss else "relu", written, written, 2 * written, written)
        dropout = (MemoryBound("dropout", written, written, written, written),) if drops else ()
        mask = (SavedActivation("dropout mask", written, MASK_BYTES),) if drops else ()
        layer = Layer(
            operators=(Matmul(name, rows, outputs, inputs, input_gradient=not (reads_data and number == 0)), after, *dropout),
            tensors=(inputs * outputs, outputs),
            kept=(SavedActivation("input", read, group="input"), *mask),
        )
        many = f",rows={rows}" if rows > 1 else ""
        layers.append(layer.named(f"{name}{number}", f"dlrm.{name}({inputs}x{outputs},{number},{is_loss}{many})", written))
    return layers


def _rounded_up(number: float) -> int:
    return max(1, math.ceil(number))
