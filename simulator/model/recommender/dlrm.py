"""Recommenders: rows of embedding tables and dense features, their interaction, and an MLP (DLRM, arXiv 1906.00091)."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, SavedActivation
from scaleproof.simulator.model.recommender.lookups import INDEX_BYTES, Looked, Lookup, RowTable, state_bytes
from scaleproof.simulator.model.recommender.placement import TABLE_BYTES, EmbeddingTable, TablePart, Tables, each, place

Interaction = Literal["dot", "cat", "dcn", "neumf", "towers"]
# Name of the lookups of a model, in tables that are divided over workers or not.
LOOKUP: Final = "lookup"
BOTTOM: Final = "bottom"
MASK_BYTES: Final = 1


class Dlrm(ModelSpec):
    """Embedding tables, a bottom MLP over dense features, their interaction, and a top MLP that ends in one click logit.

    interaction: `dot` products of all pairs of outputs, and the bottom's output (arXiv 1906.00091); `cat` of all outputs;
    `dcn`: `cross_layers` low-rank cross layers over all outputs (DCN v2, arXiv 2008.13535). `neumf` (arXiv 1708.05031): the
    product of the first two tables' rows, next to the bottom MLP over those of the others. `towers`: the first and the second
    half of the tables each have a tower, with the bottom's widths, whose outputs are multiplied.
    """

    kind: Literal["dlrm"] = "dlrm"
    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=10_000)]
    dense: int = Field(0, ge=0, le=1_000_000, description="dense features of a sample")
    bottom: Annotated[tuple[Width, ...], Field(max_length=100)] = Field((), description="widths of the bottom MLP's layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the bottom MLP's outputs that dropout sets to zero")
    top: Annotated[tuple[Width, ...], Field(max_length=100)] = Field((), description="widths of the top MLP's layers")
    interaction: Interaction = "dot"
    cross_layers: Annotated[int, Field(ge=0, le=1000)] = Field(0, description="number of cross layers, dcn only")
    cross_rank: Width | None = Field(None, description="rank of the matrices of cross layers; full if absent, dcn only")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        widths, own = {table.dim for table in self.tables}, len(each(self.tables))
        if self.interaction == "dot" and (len(widths) > 1 or (self.bottom and self.bottom[-1] not in widths)):
            message = "dot products need rows and the bottom's output of one width; give equal dims, or interaction: cat"
            raise ValueError(f"interaction: {message}")
        if (self.interaction == "dcn") != (self.cross_layers > 0):
            raise ValueError("cross_layers: goes with interaction: dcn; give both or none")
        if self.cross_rank is not None and self.interaction != "dcn":
            raise ValueError("cross_rank: goes with interaction: dcn; leave it out")
        if self.interaction not in ("neumf", "towers") and bool(self.dense) != bool(self.bottom):
            raise ValueError("bottom: reads the dense features; give both, or none")
        if self.interaction in ("neumf", "towers") and (self.dense or not self.bottom or own % 2 or own < 2):
            message = "reads an even number of tables and no dense features, and needs bottom"
            raise ValueError(f"interaction: {self.interaction} {message}; change either")
        if self.interaction == "neumf" and (own != 4 or self._dims[0] != self._dims[1]):
            raise ValueError("interaction: neumf needs four tables, the first two of one dim; give these")
        if self.interaction != "towers" and not self.top:
            raise ValueError("top: missing; give the widths of its layers, as in [512, 256, 1]")
        return self

    @property
    def _dims(self) -> list[int]:
        return [table.dim for table in each(self.tables)]

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The tables with the bottom MLP, the interaction, and each layer of the top MLP. Raises FieldError for shards of
        anything but tables."""
        refuse_to_shard(self.kind, shard._replace(tables=None, workers=1))
        # times of other tables, or of other parts of them, say nothing about this layer
        parts = zlib.crc32(repr((self.tables, self.dense, self.bottom, self.interaction, shard.tables, shard.workers)).encode())
        first = (self._looked_up(shard) + self._bottom()).named("features", f"dlrm.features({parts:08x})", self._features)
        width, interactions = self._interactions()
        return [first, *interactions, *_mlp("top", [width, *self.top], ends_in_loss=True)]

    @property
    def _features(self) -> int:
        """Elements of the outputs of tables and bottom MLP, without those that the bottom reads."""
        if self.interaction == "towers":
            return 2 * self.bottom[-1]
        read = sum(self._dims[2:]) if self.interaction == "neumf" else 0
        return sum(self._dims) - read + (self.bottom[-1] if self.bottom else 0)

    def _looked_up(self, shard: Shard) -> Layer:
        """The lookups of the worker with the most, and the exchanges of indices, rows and gradients."""
        how, tables = shard.tables, each(self.tables)
        replicated = [table for table in tables if how is None or not how.is_sharded(table)]
        result = _replicas(replicated)
        if how is not None and len(replicated) < len(tables):
            result = _shards(place(self.tables, how, shard.workers), tables, how, shard.workers) + result
        return result

    def _bottom(self) -> Layer:
        """The bottom MLP over dense features; the MLPs over looked-up rows of towers and of NeuMF."""
        if not self.bottom:
            return Layer()
        dims, half = self._dims, len(self._dims) // 2
        inputs = {"towers": [sum(dims[:half]), sum(dims[half:])], "neumf": [sum(dims[2:])]}.get(self.interaction, [self.dense])
        reads_data = self.dense > 0
        parts = (one for width in inputs for one in _mlp(BOTTOM, [width, *self.bottom], reads_data, self.dropout > 0))
        return sum(parts, Layer())

    def _interactions(self) -> tuple[int, list[Layer]]:
        """The width of what the top MLP reads, and the layers of the interaction."""
        features = self._features
        if self.interaction == "dcn":
            return features, [_cross(number, features, self.cross_rank) for number in range(self.cross_layers)]
        if self.interaction == "cat":
            return features, [_interaction(features, features, features)]
        if self.interaction == "neumf":
            width = self._dims[0] + self.bottom[-1]
            return width, [_interaction(features, width, features)]
        if self.interaction == "towers":
            product = self.bottom[-1] if self.top else 1
            return product, [_interaction(features, product, 0 if self.top else features)]
        count, width = len(self._dims) + bool(self.bottom), self._dims[0]
        pairs = count * (count - 1) // 2
        outputs = pairs + (width if self.bottom else 0)
        # the product computes all pairs twice
        return outputs, [_interaction(features, outputs, 2 * count * count * width, pairs=True)]


def _replicas(tables: Sequence[EmbeddingTable]) -> Layer:
    """Tables that each worker has whole, as parameters with dense gradients."""
    if not tables:
        return Layer()
    parts = tuple(Looked(table.distribution, table.dim, table.pooling) for table in tables)
    outputs = sum(table.dim for table in tables)
    lookup = Lookup(LOOKUP, outputs, outputs, outputs, outputs, parts)
    indices = SavedActivation("indices", _rounded_up(sum(table.pooling for table in tables)), INDEX_BYTES)
    tensors, own = tuple(table.rows * table.dim for table in tables), tuple(itertools.starmap(RowTable, enumerate(parts)))
    return Layer(operators=(lookup,), tensors=tensors, kept=(indices,), row_tables=own)


@dataclass(frozen=True)
class _Loads:
    """What the workers with the most have, per sample of one worker. outputs: elements of pooled rows; lookups; bytes of
    parts with states."""

    outputs: int
    lookups: float
    stored_bytes: float


def _shards(parts: Sequence[TablePart], tables: Sequence[EmbeddingTable], how: Tables, workers: int) -> Layer:
    """Tables that are divided over workers."""
    by_owner: dict[int, list[TablePart]] = {}
    for part in parts:
        by_owner.setdefault(part.owner, []).append(part)
    element_bytes = TABLE_BYTES[how.precision]

    def looked(part: TablePart) -> Looked:
        table = tables[part.table]
        return Looked(table.distribution, len(part.columns), table.pooling, len(part.rows) / table.rows)

    def loads(own: Sequence[TablePart]) -> _Loads:
        return _Loads(
            workers * sum(len(part.columns) for part in own),
            workers * sum(looked(part).pooling * looked(part).share for part in own),
            sum(part.elements * element_bytes + len(part.rows) * state_bytes(how.optimizer, len(part.columns)) for part in own),
        )

    busiest = max(by_owner.values(), key=lambda own: sum(looked(part).pooling * len(part.columns) for part in own))
    most, every = loads(busiest), [loads(own) for own in by_owner.values()]
    pooled = sum(len(part.columns) for part in parts) if how.shard != "row" else most.outputs
    lookup = Lookup(
        LOOKUP, most.outputs, most.outputs, most.outputs, most.outputs, tuple(map(looked, busiest)), workers, element_bytes,
        how.optimizer, how.cache if how.on == "host" else 1.0,
    )  # fmt: skip
    stored_bytes = max(one.stored_bytes for one in every)
    return Layer(
        operators=(lookup,),
        kept=(SavedActivation("indices", _rounded_up(most.lookups), INDEX_BYTES),),
        exchanges=_exchanges(how, workers, pooled, every) if workers > 1 else (),
        table_bytes=stored_bytes * (how.cache if how.on == "host" else 1.0),
        host_table_bytes=stored_bytes if how.on == "host" else 0.0,
    )


def _exchanges(how: Tables, workers: int, pooled: int, loads: Sequence[_Loads]) -> tuple[Exchange, ...]:
    """The exchange of indices, and those of pooled rows and of their gradients, in elements of a worker's samples.

    All-to-alls take as long as that of the worker that sends or receives the most. Rows are divided by all-to-alls of whole
    outputs or of their columns; where workers have ranges of rows, their sums are scattered, and gradients gathered.
    """
    indices = [_rounded_up(one.lookups) for one in loads]
    most = max(indices)
    sent = [
        Exchange(
            "alltoall", most, False, hidden=how.overlap_input, axis="tables", element_bytes=INDEX_BYTES,
            one_way=_one_way(most, sum(indices) // workers, workers),
        )
    ]  # fmt: skip
    if how.shard == "row":
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
    return most - max(0, workers * mean - most) // (workers - 1)


def _mlp(
    name: str, widths: Sequence[int], reads_data: bool = False, drops: bool = False, ends_in_loss: bool = False
) -> list[Layer]:
    """Linear layers with ReLU and dropout, named after the MLP; the last one of the model has the loss of a click."""
    layers = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        is_loss = ends_in_loss and number == len(widths) - 2
        after = MemoryBound("click loss" if is_loss else "relu", outputs, outputs, 2 * outputs, outputs)
        dropout = (MemoryBound("dropout", outputs, outputs, outputs, outputs),) if drops else ()
        mask = (SavedActivation("dropout mask", outputs, MASK_BYTES),) if drops else ()
        layer = Layer(
            operators=(Matmul(name, 1, outputs, inputs, input_gradient=not (reads_data and number == 0)), after, *dropout),
            tensors=(inputs * outputs, outputs),
            kept=(SavedActivation("input", inputs, group="input"), *mask),
        )
        layers.append(layer.named(f"{name}{number}", f"dlrm.{name}({inputs}x{outputs},{number},{is_loss})", outputs))
    return layers


def _interaction(inputs: int, outputs: int, flops: int, pairs: bool = False) -> Layer:
    """An interaction without parameters, one kernel that reads and writes each element once in each direction."""
    operator = Combination("interaction", inputs, outputs, inputs + outputs, inputs, flops, pairs)
    layer = Layer(operators=(operator,), kept=(SavedActivation("input", inputs, group="input"),))
    return layer.named("interaction", f"dlrm.interaction({inputs}x{outputs})", outputs)


def _cross(number: int, width: int, rank: int | None) -> Layer:
    """A cross layer x₀ ⊙ (U V x + b) + x of DCN v2."""
    shapes = [(width, width)] if rank is None else [(width, rank), (rank, width)]
    layer = Layer(
        operators=(
            *(Matmul("cross", 1, outputs, inputs) for inputs, outputs in shapes),
            MemoryBound("cross product", 3 * width, width, 4 * width, 3 * width),
        ),
        tensors=(*(inputs * outputs for inputs, outputs in shapes), width),
        kept=(
            *(SavedActivation("input", inputs, group="input") for inputs, _ in shapes),
            SavedActivation("cross output", width),
        ),
    )
    return layer.named(f"cross{number}", f"dlrm.cross({width},{rank})", width)


@dataclass(frozen=True)
class Combination(MemoryBound):
    """A memory-bound operator whose products are counted. flops: of the forward pass over one sample. pairs: whether it
    gathers products of all pairs of features."""

    flops: int = 0
    pairs: bool = False

    @property
    def forward_flops(self) -> float:  # type: ignore[override]
        """FLOPs of the forward pass."""
        return float(self.flops)

    @property
    def backward_flops(self) -> float:  # type: ignore[override]
        """FLOPs of the backward pass, two products for each."""
        return 2.0 * self.flops


def _rounded_up(number: float) -> int:
    return max(1, -int(-number // 1))


def lookups_of(layers: Sequence[Layer]) -> list[Lookup]:
    """The lookups of a model's layers."""
    return [operator for layer in layers for operator in layer.operators if isinstance(operator, Lookup)]
