"""Recommenders: rows of embedding tables and dense features, their interaction, and an MLP (DLRM, arXiv 1906.00091)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation
from scaleproof.simulator.model.recommender.parts import Recommender, looked_up, mlp
from scaleproof.simulator.model.recommender.placement import each

Interaction = Literal["dot", "cat", "dcn", "neumf", "towers"]
BOTTOM: Final = "bottom"


class Dlrm(Recommender):
    """Embedding tables, a bottom MLP over dense features, their interaction, and a top MLP that ends in one click logit.

    interaction: `dot` products of all pairs of outputs, and the bottom's output (arXiv 1906.00091); `cat` of all outputs;
    `dcn`: `cross_layers` low-rank cross layers over all outputs (DCN v2, arXiv 2008.13535). `neumf` (arXiv 1708.05031): the
    product of the first two tables' rows, next to the bottom MLP over those of the others. `towers`: the first and the second
    half of the tables each have a tower, with the bottom's widths, whose outputs are multiplied.
    """

    kind: Literal["dlrm"] = "dlrm"
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
        first = (looked_up(self.tables, shard) + self._bottom()).named(
            "features", f"dlrm.features({parts:08x})", self._features
        )
        width, interactions = self._interactions()
        return [first, *interactions, *mlp("top", [width, *self.top], ends_in_loss=True)]

    @property
    def _features(self) -> int:
        """Elements of the outputs of tables and bottom MLP, without those that the bottom reads."""
        if self.interaction == "towers":
            return 2 * self.bottom[-1]
        read = sum(self._dims[2:]) if self.interaction == "neumf" else 0
        return sum(self._dims) - read + (self.bottom[-1] if self.bottom else 0)

    def _bottom(self) -> Layer:
        """The bottom MLP over dense features; the MLPs over looked-up rows of towers and of NeuMF."""
        if not self.bottom:
            return Layer()
        dims, half = self._dims, len(self._dims) // 2
        inputs = {"towers": [sum(dims[:half]), sum(dims[half:])], "neumf": [sum(dims[2:])]}.get(self.interaction, [self.dense])
        reads_data = self.dense > 0
        parts = (
            one for width in inputs for one in mlp(BOTTOM, [width, *self.bottom], reads_data=reads_data, drops=self.dropout > 0)
        )
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
    inputs = ("features", f"cross{number - 1}") if number else ("features",)
    return layer.named(f"cross{number}", f"dlrm.cross({width},{rank})", width, inputs=inputs)


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
