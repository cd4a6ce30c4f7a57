"""Decoder-only transformers: one class for all of them, with the defaults of GPT and Llama in subclasses.

FLOPs are those of matrix products, two per multiply-add (arXiv 2104.04473, appendix).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.model.transformer.attention import Heads, Latent, attention, latent_projection, qkv_projection
from scaleproof.simulator.model.transformer.experts import Experts, expert_parameters, mixture
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    Norm,
    Norms,
    block,
    branch_collectives,
    embedding,
    even_share,
    linear,
    logits_and_loss,
    mlp,
    norm,
    output_head,
)
from scaleproof.simulator.model.transformer.recurrent import Recurrence, recurrence

# In all layers, about ten times as many as any model has; their tensors are listed one by one.
_MAX_EXPERTS: Final = 250_000
# Branches of a block by their letters in a pattern, those of Nemotron-H (arXiv 2504.03624) and E.
_BRANCHES: Final = "*M-E"
# fields that are written explicitly in a layer's signature, or that do not affect its cost
_NO_OPTIONS: Final = frozenset({"kind", "name", "description", "layers", "hidden", "heads", "vocabulary", "sequence"})


class Transformer(ModelSpec):
    """A decoder-only transformer; a family is a subclass with other defaults."""

    kind: str
    layers: Depth
    hidden: Width
    heads: Width
    vocabulary: Width
    sequence: Width = Field(description="tokens of a sample")
    feedforward: Width | None = Field(None, description="width of the MLP; four times hidden if absent")
    key_heads: Width | None = Field(None, description="number of heads of keys and values; that of queries if absent")
    head_width: Width | None = Field(None, description="hidden / heads if absent")
    activation: Activation = "gelu"
    norm: Norm = "layer"
    biases: Literal["all", "qkv", "none"] = "all"
    positions: Literal["learned", "rotary", "none"] = "learned"
    position_rows: Width | None = Field(None, description="longest sequence with learned positions; sequence if absent")
    window: Width | None = Field(None, description="tokens that a token attends to (sliding window); all if absent")
    sinks: bool = Field(False, description="whether each head's softmax has a learned term that no value belongs to (gpt-oss)")
    tied: bool = Field(False, description="whether the output head shares the embedding's weights")
    head_bias: bool = Field(False, description="whether the output head has biases")
    softcap: bool = Field(False, description="whether logits pass a scaled tanh (Gemma 2)")
    global_every: Width | None = Field(
        None, description="with a window: every n-th block attends to all tokens (2 in Gemma 2 and gpt-oss, 6 in Gemma 3)"
    )
    norms: Norms = Field("before", description="where each branch is normalised: its input, its output (OLMo 2), or both")
    parallel: bool | Literal["one norm"] = Field(
        False, description="whether attention and MLP read the same input, each through a norm of its own or both through one"
    )
    head_norms: bool | Literal["whole"] = Field(
        False, description="whether queries and keys are normalised: each head, or all heads as a whole"
    )
    dropout: bool = Field(False, description="whether there is dropout, including that of attention scores")
    flash: bool = Field(True, description="whether attention is one kernel that keeps no scores")
    experts: Experts | None = None
    latent: Latent | None = None
    gated: bool = Field(
        False, description="whether the output of attention is multiplied by a sigmoid that its input gives (Qwen3-Next)"
    )
    recurrence: Recurrence | None = None
    pattern: str | None = Field(
        None,
        max_length=10_000,
        description="branches of the blocks, a word for each block, repeated: * attention, M recurrence, - MLP, E mixture; for "
        "example 'M- ME *- ME' (Jamba) or 'M - * -' (Nemotron-H); '*-' or '*E' if absent",
    )
    predictions: int = Field(
        0, ge=0, le=64, description="further tokens that each position predicts, each with a block of its own (DeepSeek-V3)"
    )

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.head_width is None and self.latent is None and self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden {self.hidden}; give a divisor of it")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads} does not divide heads {self.heads}; give a divisor of it")
        if self.latent is not None and self.key_heads not in (None, self.heads):
            message = f"key_heads: {self.key_heads} differs from heads {self.heads}; with latent attention they are equal"
            raise ValueError(message)
        if self.latent is not None and self.head_width is not None:
            raise ValueError(f"head_width: {self.head_width} conflicts with the widths of latent; leave it out")
        if self.global_every is not None and self.window is None:
            raise ValueError("global_every: all blocks attend to all tokens; give window, or leave it out")
        if self.parallel and self.norms != "before":
            raise ValueError(f"norms: {self.norms!r} conflicts with parallel branches; give before")
        if self.position_rows is not None and self.positions == "learned" and self.sequence > self.position_rows:
            message = f"sequence: {self.sequence} is more than position_rows {self.position_rows}; give at most that many"
            raise ValueError(message)
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise ValueError(f"experts.dense_layers: {self.experts.dense_layers} is more than layers {self.layers}; give fewer")
        if self.experts is not None and self.experts.count * (mixed := self.layers - self.experts.dense_layers) > _MAX_EXPERTS:
            message = f"experts.count: {self.experts.count} in each of {mixed} blocks; give at most {_MAX_EXPERTS} in all"
            raise ValueError(message)
        return self._with_pattern()

    def _with_pattern(self) -> Self:
        words = self.pattern.split() if self.pattern is not None else None
        if words is None:
            if self.recurrence is not None:
                raise ValueError("pattern: missing; with a recurrence give the branches of the blocks, such as 'M- *-'")
            return self
        if not words or set("".join(words)) - set(_BRANCHES) or any(len(set(word)) < len(word) for word in words):
            raise ValueError(f"pattern: {self.pattern!r}; give words of the letters {' '.join(_BRANCHES)}, each once in a word")
        if self.layers % len(words):
            raise ValueError(f"pattern: {len(words)} blocks do not divide layers {self.layers}; give a divisor of it")
        for letter, field, given in (("M", "recurrence", self.recurrence), ("E", "experts", self.experts)):
            if (letter in "".join(words)) != (given is not None):
                missing = f"missing; pattern has a block with {letter}, which needs it"
                unused = f"not used; add {letter} to a block of pattern, or leave it out"
                raise ValueError(f"{field}: {missing if given is None else unused}")
        if self.experts is not None and self.experts.dense_layers:
            raise ValueError("experts.dense_layers: a pattern says which blocks have experts; leave it out")
        return self

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Embedding, blocks (those without experts first) and output head.

        Tensor-parallel ranks divide heads, MLPs and words; key heads are replicated if they are fewer than ranks. Raises
        FieldError if the model cannot be divided so.
        """
        count = self.experts.count if self.experts else None
        stream = ActivationStream.checked(self.sequence, self.hidden, shard, self.norm, self.dropout, count)
        h, v, s = f"h={self.hidden}", f"v={self.vocabulary}", f"s={self.sequence}"
        end = f"{options(self)}{sharding(shard)})"
        roles = [(self.branches_of(index), self.window_of(index)) for index in range(self.layers)]
        parts = {role: self._block(stream, *role) for role in dict.fromkeys(roles)}
        blocks: list[Layer] = []
        for index, (branches, window) in enumerate(roles):
            usual = {"*-": "block", "*E": "experts"}.get(branches, f"block[{branches}]")
            role = usual + ("" if window == self.window else ".global")
            signature = f"{self.kind}.{role}({h},heads={self.heads},{s}{end}"
            blocks.append(parts[branches, window].named(f"block{index}", signature, stream.local_elements))
        ahead = _joined(stream) + parts[roles[-1]] if self.predictions else Layer()
        first, last = self._ends(stream)
        return [
            first.named("embedding", f"{self.kind}.embedding({h},{v},{s}{end}", stream.local_elements, pinned_to_end=True),
            *blocks,
            *(
                ahead.named(
                    f"prediction{index}", f"{self.kind}.prediction({h},{s}{end}", stream.local_elements, pinned_to_end=True
                )
                for index in range(self.predictions)
            ),
            last.named("head", f"{self.kind}.head({h},{v},{s}{end}", self._words(shard) * stream.tokens, pinned_to_end=True),
        ]

    def is_mixed(self, block: int) -> bool:
        """Whether a block has a mixture of experts."""
        return "E" in self.branches_of(block)

    def branches_of(self, block: int) -> str:
        """The branches of a block, by the letters of `pattern`."""
        if self.pattern is not None:
            words = self.pattern.split()
            return words[block % len(words)]
        return "*E" if self.experts is not None and block >= self.experts.dense_layers else "*-"

    def window_of(self, block: int) -> int | None:
        """Number of tokens that each token of a block attends to; None for all."""
        return None if self.global_every is not None and (block + 1) % self.global_every == 0 else self.window

    def active_parameters(self) -> int:
        """Number of parameters that a token uses: all except those of the experts that it is not sent to."""
        if self.experts is None:
            return self.parameters()
        mixed = sum(map(self.is_mixed, range(self.layers)))
        idle = mixed * (self.experts.count - self.experts.active)
        return self.parameters() - idle * expert_parameters(self.experts, self.hidden, self.activation)

    def _block(self, stream: ActivationStream, branches: str, window: int | None) -> Layer:
        """A block with some branches."""
        both = [self._branch(stream, letter, window) for letter in branches]
        return block(stream, [part for part, _ in both], self.parallel, [collectives for _, collectives in both], self.norms)

    def _branch(self, stream: ActivationStream, letter: str, window: int | None) -> tuple[Layer, Layer]:
        """A branch, and the collectives around it."""
        if letter == "*":
            return self._attention(stream, window), branch_collectives(stream)
        if letter == "M":
            assert self.recurrence is not None
            return recurrence(stream, self.recurrence), branch_collectives(stream)
        return self._mixture(stream) if letter == "E" else self._mlp(stream)

    def _attention(self, stream: ActivationStream, window: int | None) -> Layer:
        ranks = stream.shard.tensor
        heads = even_share("heads", self.heads, ranks)
        bias = self.biases == "all"
        if self.latent is not None:
            width = self.latent.width + self.latent.rotary_width
            shape = Heads(heads, heads, width, self.latent.value_width, True, self.flash, window)
            mixing = latent_projection(stream, shape, self.latent) + attention(stream, shape, bias)
            up, kept = {"query", "query up", "key up", "rotary"}, {"queries", "keys", "values"}
            return mixing.module("mla_up_proj", up, kept, exchanges=False)
        # key heads are replicated if they are fewer than ranks
        key_heads = even_share("key_heads", max(self.key_heads or self.heads, ranks), ranks)
        width = self.head_width or self.hidden // self.heads
        shape = Heads(heads, key_heads, width, width, True, self.flash, window)
        rotary = self.positions == "rotary"
        part = qkv_projection(stream, shape, self.biases != "none", rotary, self.head_norms)
        if self.gated:
            part += linear("attention gate", stream.tokens, heads * width, stream.hidden, False)
        part += attention(stream, shape, bias, gated=self.gated)
        return part + Layer(tensors=(heads,)) if self.sinks else part

    def _mlp(self, stream: ActivationStream) -> tuple[Layer, Layer]:
        """An MLP and the collectives around it."""
        feedforward = even_share("feedforward", self.feedforward or 4 * self.hidden, stream.shard.tensor)
        return mlp(stream, feedforward, self.activation, self.biases == "all"), branch_collectives(stream)

    def _mixture(self, stream: ActivationStream) -> tuple[Layer, Layer]:
        """A mixture of experts and the collectives around it. If fewer ranks share an expert than share the parts that all
        tokens pass, each of the two has its own collectives."""
        experts, own = self.experts, stream.expert_stream
        assert experts is not None
        even_share("experts.feedforward", experts.feedforward, own.shard.tensor, "tensor" if own is stream else "expert_tensor")
        part = mixture(own, experts, self.activation)
        collectives = branch_collectives(stream) if own is stream else branch_collectives(own, "expert_tensor")
        if experts.shared:
            feedforward = even_share("experts.shared · feedforward", experts.shared * experts.feedforward, stream.shard.tensor)
            part += mlp(stream, feedforward, self.activation, False, "shared_experts")
            collectives += Layer() if own is stream else branch_collectives(stream)
        return part.module("moe"), collectives

    def _words(self, shard: Shard) -> int:
        """Number of words on each rank; those of the last rank are padded."""
        return -(-self.vocabulary // shard.tensor)

    def _ends(self, stream: ActivationStream) -> tuple[Layer, Layer]:
        words = self._words(stream.shard)
        rows = (self.position_rows or self.sequence) if self.positions == "learned" else None
        ahead = norm(stream) + logits_and_loss(stream, words, True, False, self.softcap)
        last = sum([ahead] * self.predictions, output_head(stream, words, self.tied, self.head_bias, self.softcap))
        return embedding(stream, words, rows), last


def _joined(stream: ActivationStream) -> Layer:
    """The input of a block that predicts a further token: the normalised last activations and the normalised embedding of the
    token before it, projected together (arXiv 2412.19437, section 2.2). Ranks share the columns of the projection."""
    ranks, tokens, hidden = stream.shard.tensor, stream.tokens, stream.hidden
    product = linear("prediction input", tokens, even_share("hidden", hidden, ranks), 2 * hidden, False)
    kept = Layer(kept=(SavedActivation("prediction input", 2 * stream.local_elements, group="input"),))
    return norm(stream) + norm(stream) + kept + branch_collectives(stream) + product


class Gpt(Transformer):
    """A GPT: learned positions, biases, norms before attention and MLP, GELU; flash attention, no dropout."""

    kind: Literal["gpt"] = "gpt"


class LlamaDefaults(Transformer):
    """Rotary positions, no biases, RMS norms, gated MLPs."""

    activation: Activation = "swiglu"
    norm: Norm = "rms"
    biases: Literal["all", "qkv", "none"] = "none"
    positions: Literal["learned", "rotary", "none"] = "rotary"


class Llama(LlamaDefaults):
    """A Llama and its kin: Mistral, Mixtral, Qwen, DeepSeek, Gemma, Phi-3, OLMo, GLM, gpt-oss."""

    kind: Literal["llama"] = "llama"


def repeated(name: str, first: int, count: int, signature: str, part: Layer, output: int) -> Sequence[Layer]:
    """`count` identical layers, numbered from `first`."""
    return [part.named(f"{name}{first + index}", signature, output) for index in range(count)]


def options(model: ModelSpec) -> str:
    """Fields that differ from the family's defaults, for signatures."""
    fields = type(model).model_fields
    return "".join(f",{field}={value}" for field, value in model if field not in _NO_OPTIONS and value != fields[field].default)


def sharding(shard: Shard) -> str:
    """The division of a layer among ranks, for signatures; empty if it is not divided."""
    return "".join(f",{field}={value}" for field, value in shard._asdict().items() if value != getattr(WHOLE, field))
