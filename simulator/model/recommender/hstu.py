"""Recommenders of sequences of interactions: hierarchical sequential transduction units (HSTU, arXiv 2402.17152)."""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Attention, MemoryBound, SavedActivation
from scaleproof.simulator.model.recommender.parts import Recommender, looked_up, mlp
from scaleproof.simulator.model.recommender.placement import each
from scaleproof.simulator.model.transformer.layer_parts import ActivationStream, linear, norm_of, residual

# Name of the kernel of a block's attention.
POINTWISE_ATTENTION: Final = "pointwise attention"


class Hstu(Recommender):
    """Tables of items and actions, `layers` blocks over the interactions of a user, and an MLP with a logit for each task.

    A block has no MLP: one product with SiLU gives factors, values, queries and keys; the SiLU of scores, with biases of
    distances in time and position, weighs values in place of a softmax; their norm is multiplied by the factors and projected.
    Of each table a token looks up `pooling` rows; rows of all tables are added, or the tables take turns.
    """

    kind: Literal["hstu"] = "hstu"
    layers: Depth
    hidden: Width = Field(description="width of a token, and of the rows of all tables")
    heads: Width
    width: Width = Field(description="width of queries and keys of a head")
    value_width: Width | None = Field(None, description="width of values and factors of a head; width if absent")
    sequence: Width = Field(description="tokens of a sample")
    interleaved: bool = Field(
        False,
        description="whether tables take turns, a token of each after the other, as items and actions do; the MLP reads those "
        "of the first table",
    )
    positions: Width | None = Field(None, description="longest sequence with relative positions; sequence if absent")
    time_buckets: int = Field(
        128, ge=0, le=1_000_000, description="ranges of the logarithm of distances in time, each with a bias; 0 for no times"
    )
    flash: bool = Field(True, description="whether attention is one kernel that keeps no scores")
    top: Annotated[tuple[Width, ...], Field(min_length=1, max_length=100)] = Field(
        (1,), description="widths of the MLP's layers over a token; the last one is the number of tasks"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(table.dim != self.hidden for table in self.tables):
            raise ValueError(f"tables: rows are added to tokens {self.hidden} wide; give dim: {self.hidden}")
        if self.interleaved and self.sequence % len(each(self.tables)):
            message = f"{len(each(self.tables))} tables that take turns do not divide sequence {self.sequence}"
            raise ValueError(f"interleaved: {message}; give a multiple of it")
        if self.positions is not None and self.sequence > self.positions:
            raise ValueError(f"sequence: {self.sequence} is more than positions {self.positions}; give at most that many")
        return self

    @property
    def values(self) -> int:
        """Width of the values of all heads."""
        return self.heads * (self.value_width or self.width)

    @property
    def bias_tensors(self) -> tuple[int, ...]:
        """Elements of a block's biases: of distances in position, and of those in time."""
        positions = 2 * (self.positions or self.sequence) - 1
        return (positions, *((self.time_buckets + 1,) if self.time_buckets else ()))

    @property
    def tokens_each(self) -> int:
        """Number of tokens of a sample that look up rows of one table."""
        return self.sequence // len(each(self.tables)) if self.interleaved else self.sequence

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The tables, the blocks, and each layer of the MLP. Raises FieldError for shards of anything but tables."""
        refuse_to_shard(self.kind, shard._replace(tables=None, workers=1))
        stream = ActivationStream(self.sequence, self.hidden, WHOLE, "layer", dropout=False)
        parts = zlib.crc32(repr((self.tables, self.interleaved, shard.tables, shard.workers)).encode())
        size = f"h={self.hidden},s={self.sequence}"
        features = (looked_up(self.tables, shard, self.tokens_each) + self._joined()).named(
            "features", f"hstu.features({size},{parts:08x})", stream.full_elements
        )
        block, shape = (
            self._block(stream),
            f"{size},heads={self.heads}x{self.width}x{self.values},{self.bias_tensors},{self.flash}",
        )
        blocks = [block.named(f"block{n}", f"hstu.block({shape})", stream.full_elements) for n in range(self.layers)]
        read = self.tokens_each if self.interleaved else self.sequence
        return [features, *blocks, *mlp("top", [self.hidden, *self.top], read, ends_in_loss=True)]

    def _joined(self) -> Layer:
        """The sum of the rows of all tables, or their order in turns."""
        count, written = len(each(self.tables)), self.sequence * self.hidden
        if count == 1:
            return Layer()
        read = count * self.tokens_each * self.hidden
        return Layer(operators=(MemoryBound("tokens", read, written, written, read),))

    def _block(self, stream: ActivationStream) -> Layer:
        """A block. It keeps 7 elements for each element of a token if heads are as wide as it in all (14 bytes of 16-bit
        elements, arXiv 2402.17152, section 3.3): kernels compute SiLU and the gated norm again from what they read."""
        tokens, values, keys = self.sequence, self.values, self.heads * self.width
        projected, written = tokens * 2 * (values + keys), tokens * values
        attention = Attention(
            POINTWISE_ATTENTION, self.heads, self.heads, tokens, tokens, self.width, values // self.heads, flash=self.flash
        )
        scores = () if self.flash else (SavedActivation("attention scores", attention.scores, group="attention"),)
        mixed = Layer(
            operators=(
                MemoryBound("silu", projected, projected, 2 * projected, projected), attention,
                MemoryBound("gated norm", 2 * written, written, 3 * written, 2 * written),
            ),
            tensors=self.bias_tensors,
            kept=(
                SavedActivation("input", stream.full_elements, group="input"), SavedActivation("norms", stream.full_elements),
                SavedActivation("factors, values, queries, keys", projected), *scores,
                SavedActivation("attention output", written),
            ),
        )  # fmt: skip
        return (
            Layer(operators=(norm_of("norm", stream.full_elements),))
            + linear("factors, values, queries, keys", tokens, 2 * (values + keys), self.hidden, False)
            + mixed
            + linear("projection", tokens, self.hidden, values, True)
            + residual(stream)
        )
