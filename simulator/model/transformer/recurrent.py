"""Token mixers with a state of fixed size in place of attention: Mamba, Mamba-2, gated linear attention, gated DeltaNet."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec, Width
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange, MemoryBound, SavedActivation, Scan
from scaleproof.simulator.model.transformer.layer_parts import ActivationStream, even_share, linear

# Width of the low-rank projection of the decays of gated linear attention (arXiv 2312.06635, section 4.4).
DECAY_RANK: Final = 16


# Name of the kernel of Mamba's recurrence.
SELECTIVE_SCAN: Final = "selective scan"


class Recurrence(Spec):
    """A recurrence over the tokens. Widths are per head."""

    kind: Literal["mamba", "mamba2", "gla", "gated_deltanet"] = Field(
        description="Mamba (arXiv 2312.00752), Mamba-2 (2405.21060), gated linear attention (2312.06635), or the gated delta "
        "rule (2412.06464)"
    )
    heads: Width = Field(description="number of states; the inner width for mamba")
    width: Width = Field(description="width of keys and queries, called the state size in Mamba")
    value_width: Width = Field(1, description="width of the values of a head; 1 for mamba")
    key_heads: Width | None = Field(
        None, description="number of heads of keys and queries, called groups in Mamba; that of states if absent"
    )
    convolution: int = Field(4, ge=0, le=1024, description="tokens of the convolution before the recurrence; 0 for none")
    rank: Width | None = Field(
        None, description="width of the low-rank projection of the time steps of mamba; hidden / 16 if absent"
    )
    chunk: Width = Field(256, description="tokens of a chunk that matrix products compute at once")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads} does not divide heads {self.heads}; give a divisor of it")
        if self.kind == "mamba" and (self.value_width != 1 or self.key_heads not in (None, 1)):
            raise ValueError("value_width: mamba's states have one value each, and share keys; leave it and key_heads out")
        if self.kind == "gla" and self.convolution:
            raise ValueError(f"convolution: {self.convolution} tokens; gated linear attention has none, give 0")
        return self

    @property
    def groups(self) -> int:
        """Number of heads of keys; in Mamba, where all channels share keys that are sums over them, of channels."""
        return self.heads if self.kind == "mamba" else self.key_heads or self.heads

    @property
    def inner(self) -> int:
        """Width of all values."""
        return self.heads * self.value_width

    @property
    def key_columns(self) -> int:
        """Columns of keys and queries together."""
        return 2 * (self.key_heads or self.heads) * self.width

    @property
    def convolved(self) -> int:
        """Channels of the convolution: in Mamba those of values alone, since keys and queries are computed from them."""
        return self.inner + (0 if self.kind == "mamba" else self.key_columns)

    @property
    def columns(self) -> int:
        """Columns of the projection of the input: values and their gate, keys and queries, a time step or a decay of each head,
        and the strength of its update."""
        scalars = {"mamba": 0, "mamba2": 1, "gla": 0, "gated_deltanet": 2}[self.kind]
        return self.inner + self.convolved + scalars * self.heads

    @property
    def scalars(self) -> tuple[int, ...]:
        """Elements of the parameters of decays, of the inputs' weights in the outputs, and of the biases of time steps."""
        mamba = (self.heads * self.width, self.heads)
        return mamba if self.kind == "mamba" else {"mamba2": (self.heads,) * 3, "gla": ()}.get(self.kind, (self.heads,) * 2)

    def rank_of(self, hidden: int) -> int:
        """Width of the projection of time steps."""
        return self.rank or max(1, hidden // 16)

    def divided(self, ranks: int, field: str) -> Recurrence:
        """The share of one of `ranks` ranks; heads of keys are replicated if they are fewer. Raises FieldError if the states
        cannot be divided so."""
        heads = even_share("recurrence.heads", self.heads, ranks, field)
        if self.kind == "mamba":
            return self.model_copy(update={"heads": heads})
        keys = even_share("recurrence.key_heads", max(self.key_heads or self.heads, ranks), ranks, field)
        return self.model_copy(update={"heads": heads, "key_heads": keys})


def recurrence(stream: ActivationStream, whole: Recurrence) -> Layer:
    """A recurrence with its projections, its short convolution and its gate. Mamba's own kernel is bound by memory.

    Context-parallel ranks exchange tokens for heads before and after it, as in DeepSpeed-Ulysses. Raises FieldError if states
    would have to pass from rank to rank.
    """
    shard = stream.shard
    if shard.context > 1 and shard.context_by != "ulysses":
        message = "a recurrence passes states from token to token, through all ranks; set strategy.context_by=ulysses"
        raise FieldError(("strategy", "context_by"), message)
    own = whole.divided(shard.tensor, "tensor")
    part, sent = _projected(stream, own)
    part = Layer(tensors=own.scalars) + part
    of_rank, tokens = (own.divided(shard.context, "context") if shard.context > 1 else own), stream.tokens * shard.context
    part += _convolution(tokens, own, of_rank) + _mixed(tokens, of_rank, stream.hidden, shard.tensor) + _gated(stream, own)
    if shard.context > 1:
        passed = (stream.tokens * elements for elements in (sent, own.inner))
        part += Layer(
            exchanges=tuple(
                Exchange("alltoall", elements, backward, axis="context") for elements in passed for backward in (False, True)
            )
        )
    return part + linear("projection", stream.tokens, stream.hidden, own.inner, bias=False)


def _projected(stream: ActivationStream, own: Recurrence) -> tuple[Layer, int]:
    """The projections of the input, and the number of their columns."""
    tokens, hidden, columns = stream.tokens, stream.hidden, own.columns
    part = linear("recurrence input", tokens, columns, hidden, bias=False)
    if own.kind == "gla":
        keys = own.key_columns // 2
        part += linear("decay down", tokens, DECAY_RANK, hidden, False) + linear("decay up", tokens, keys, DECAY_RANK, True)
        columns += keys
    return part + Layer(kept=(SavedActivation("recurrence input", tokens * columns),)), columns


def _convolution(tokens: int, own: Recurrence, of_rank: Recurrence) -> Layer:
    """The causal convolution of each channel over few tokens, with SiLU; Mamba's has biases, DeltaNet's has none."""
    if not own.convolution:
        return Layer()
    elements, channels = tokens * of_rank.convolved, own.convolved
    tensors = (channels * own.convolution, *((channels,) if own.kind in ("mamba", "mamba2") else ()))
    # the backward pass reads the input and the gradient of the output
    convolution = MemoryBound("short convolution", elements, elements, 2 * elements, elements)
    return Layer(operators=(convolution,), tensors=tensors, kept=(SavedActivation("convolved", elements),))


def _mixed(tokens: int, own: Recurrence, hidden: int, ranks: int) -> Layer:
    """The recurrence itself. ranks: number of tensor-parallel ranks."""
    written, heads = tokens * own.inner, own.heads
    kept = SavedActivation("recurrence output", written)
    if own.kind == "mamba":
        rank = own.rank_of(hidden)
        columns = rank + 2 * own.width
        part = linear("time steps and keys", tokens, columns, heads, False) + linear("time steps", tokens, heads, rank, True)
        if ranks > 1:
            # each rank has some of the channels that time steps, keys and queries are computed from, and that they are used for
            part += Layer(exchanges=tuple(Exchange("all_reduce", tokens * columns, backward) for backward in (False, True)))
        # values, time steps, gate; keys and queries, which all channels share (arXiv 2312.00752, section 3.3.2)
        read = 3 * written + 2 * tokens * own.width
        scan = MemoryBound(SELECTIVE_SCAN, read, written, read + written, read)
        return part + Layer(operators=(scan,), kept=(SavedActivation("time steps", tokens * columns + written), kept))
    keys = own.key_heads or heads
    chunked = Scan(own.kind, heads, keys, tokens, own.width, own.value_width, own.chunk, own.kind == "gated_deltanet")
    return Layer(operators=(chunked,), kept=(kept,))


def _gated(stream: ActivationStream, own: Recurrence) -> Layer:
    """The norm of the output, and the gate that multiplies it; Mamba's kernel applies its gate itself, without a norm."""
    elements = stream.tokens * own.inner
    gated = SavedActivation("gated", elements)
    if own.kind == "mamba":
        return Layer(kept=(gated,))
    weights = own.inner if own.kind == "mamba2" else own.value_width
    gate = MemoryBound("gated norm", 2 * elements, elements, 3 * elements, 2 * elements)
    return Layer(operators=(gate,), tensors=(weights,), kept=(gated,))
