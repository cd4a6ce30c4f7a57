"""What transformer layers are made of, as one of the ranks that share a layer has it.

A part is operators, parameters, kept activations and collectives; adding parts makes a layer. Kept activations follow arXiv
2205.05198, section 4: those of matrix products, of softmax and activation functions and of dropout, but neither norms'
statistics nor biases, which are small; kernels are fused where training frameworks fuse them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.model.operators import Axis, Exchange, Matmul, MemoryBound, Module, Operator, SavedActivation

Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "swiglu", "geglu"]


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A piece of a layer; fields as in `Layer`."""

    operators: tuple[Operator, ...] = ()
    tensors: tuple[int, ...] = ()
    kept: tuple[SavedActivation, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    expert_parameters: int = 0
    modules: tuple[Module, ...] = ()

    def __add__(self, other: LayerPart) -> LayerPart:
        before = len(self.operators), len(self.kept), len(self.exchanges)
        return LayerPart(
            self.operators + other.operators,
            self.tensors + other.tensors,
            self.kept + other.kept,
            self.exchanges + other.exchanges,
            self.expert_parameters + other.expert_parameters,
            self.modules + tuple(module.shifted(*before) for module in other.modules),
        )

    def module(
        self, name: str, operators: Collection[str] | None = None, kept: Collection[str] | None = None, exchanges: bool = True
    ) -> LayerPart:
        """The same part, marked as a module that can be recomputed alone.

        operators, kept: names of what is recomputed and of what need not be kept; everything if None. exchanges: whether the
        collectives of this part belong to the module.
        """
        found = Module(
            name,
            tuple(i for i, one in enumerate(self.operators) if operators is None or one.name in operators),
            tuple(i for i, one in enumerate(self.kept) if kept is None or one.name in kept),
            tuple(range(len(self.exchanges) if exchanges else 0)),
        )
        return replace(self, modules=(*self.modules, found))


class ActivationStream(NamedTuple):
    """Activations between the parts: `tokens` × `hidden` elements a sample."""

    tokens: int
    hidden: int
    shard: Shard
    norm: Norm
    dropout: bool

    @classmethod
    def checked(
        cls, tokens: int, hidden: int, shard: Shard, norm: Norm, dropout: bool, experts: int | None = None
    ) -> ActivationStream:
        """One that can be divided so. experts: of each mixture, None if there is none. Raises FieldError where it cannot."""
        tokens = even_share("sequence", tokens, shard.context, "context")
        if shard.sequence:
            even_share("sequence", tokens, shard.tensor)
        if experts is not None:
            even_share("experts.count", experts, shard.expert, "expert")
        elif shard.expert > 1:
            raise FieldError(("strategy", "expert"), "there are no experts to divide; leave expert parallelism out")
        if shard.expert_tensor is not None:
            _check_folding(shard, shard.expert_tensor, experts is not None)
        return cls(tokens, hidden, shard, norm, dropout)

    @property
    def folded(self) -> ActivationStream:
        """The stream of the ranks that share each expert's matrices: with their own tokens, where they are fewer than the
        tensor-parallel ranks."""
        ranks = self.shard.expert_tensor
        if ranks is None:
            return self
        shard = self.shard._replace(tensor=ranks, sequence=ranks > 1)
        return self._replace(tokens=self.tokens // self.shard.tensor * ranks, shard=shard)

    @property
    def whole(self) -> int:
        """Elements that matrix products read and write."""
        return self.tokens * self.hidden

    @property
    def here(self) -> int:
        """Elements that a rank has between them."""
        return self.whole // self.shard.tensor if self.shard.sequence else self.whole


def _check_folding(shard: Shard, ranks: int, experts: bool) -> None:
    """Raises FieldError where fewer ranks than the tensor-parallel ones cannot share each expert's matrices."""
    field = ("strategy", "expert_tensor")
    if not experts:
        raise FieldError(field, "there are no experts to divide; leave it out")
    even_share("tensor", shard.tensor, ranks, "expert_tensor")
    if not shard.sequence:
        message = f"{ranks} of {shard.tensor} tensor-parallel ranks, which all have the same tokens"
        raise FieldError(field, f"{message}; set strategy.sequence_parallel=true, or leave it out")


def linear(name: str, rows: int, columns: int, inner: int, bias: bool) -> LayerPart:
    """A matrix product and its weights; `bias` elements for each of its columns."""
    return LayerPart((Matmul(name, rows, columns, inner),), (inner * columns, *((columns,) if bias else ())))


def norm(stream: ActivationStream) -> LayerPart:
    """Layer norm has weights and biases, RMS norm weights alone. Every rank has all of them."""
    name = "rms norm" if stream.norm == "rms" else "norm"
    return LayerPart((norm_of(name, stream.here),), norm_tensors(stream.norm, stream.hidden))


def norm_of(name: str, elements: int) -> MemoryBound:
    """A norm of `elements`; backward reads what it read and the gradient of what it wrote."""
    return MemoryBound(name, elements, elements, 2 * elements, elements)


def norm_tensors(kind: Norm, width: int) -> tuple[int, ...]:
    """Elements of a norm's parameters."""
    return (width, width) if kind == "layer" else (width,)


def block(
    stream: ActivationStream, branches: Sequence[LayerPart], parallel: bool = False, around: Sequence[LayerPart] = ()
) -> LayerPart:
    """Branches with norms and residual additions: one after the other, or all in parallel on the same input.

    Whether norms are before the branches or after the additions, as many activations are kept. around: the collectives around
    each branch, `joined` if empty; branches in parallel share those that are equal.
    """
    around = around or [joined(stream)] * len(branches)
    layer = LayerPart(kept=(SavedActivation("input", stream.here, group="input"),))
    norms, sums = (
        SavedActivation("norms", len(branches) * stream.here),
        SavedActivation("sums", (len(branches) - 1) * stream.here),
    )
    if parallel:
        inner = sum([norm(stream) for _ in branches] + list(branches), LayerPart())
        layer += inner + sum(dict.fromkeys(around), LayerPart()) + residual(stream, len(branches))
    else:
        for branch, collectives in zip(branches, around, strict=True):
            layer += norm(stream) + _surrounded(branch, collectives) + residual(stream)
    layer += LayerPart(kept=(norms,) if parallel or not sums.elements else (norms, sums))
    return layer.module("layernorm", {"norm", "rms norm"}, {"norms"}, exchanges=False)


def _surrounded(branch: LayerPart, collectives: LayerPart) -> LayerPart:
    """A branch with the collectives around it, which are part of modules that are the whole branch."""
    whole = branch + collectives
    around = tuple(range(len(branch.exchanges), len(whole.exchanges)))
    return replace(
        whole,
        modules=tuple(
            one._replace(exchanges=one.exchanges + around) if one.name in ("mlp", "moe") else one for one in whole.modules
        ),
    )


def joined(stream: ActivationStream, axis: Axis = "tensor") -> LayerPart:
    """The collectives around a branch whose matrices are shared: both its products' sums over ranks.

    With sequence parallelism the backward pass gathers the branch's input once more, during the product before the one that
    needs it (arXiv 2205.05198, section 4.2.2); hidden as it is, it is not counted.
    """
    return entered(stream, axis) + left(stream, axis)


def entered(stream: ActivationStream, axis: Axis = "tensor") -> LayerPart:
    """Where all ranks need all tokens."""
    if stream.shard.tensor == 1:
        return LayerPart()
    if stream.shard.sequence:
        # the weights' gradients need all tokens again, which are gathered beside the input's gradient (arXiv 2205.05198, 4.2.2)
        again = Exchange("all_gather", stream.whole, True, hidden=True, axis=axis)
        ways = (("all_gather", False), ("reduce_scatter", True))
        return LayerPart(exchanges=(*(Exchange(op, stream.whole, backward, axis=axis) for op, backward in ways), again))
    return LayerPart(exchanges=(Exchange("all_reduce", stream.whole, True, axis=axis),))


def left(stream: ActivationStream, axis: Axis = "tensor") -> LayerPart:
    """Where each rank has a summand of all tokens."""
    if stream.shard.tensor == 1:
        return LayerPart()
    if stream.shard.sequence:
        ways = (("reduce_scatter", False), ("all_gather", True))
        return LayerPart(exchanges=tuple(Exchange(op, stream.whole, backward, axis=axis) for op, backward in ways))
    return LayerPart(exchanges=(Exchange("all_reduce", stream.whole, False, axis=axis),))


def residual(stream: ActivationStream, branches: int = 1) -> LayerPart:
    """Dropout, if any, and addition in one kernel; its backward pass adds the gradients where trunk and branches part."""
    n = stream.here
    dropped = dropout(stream)
    # a dropout mask has one byte an element, half of a 16-bit one
    mask = n // 2 if stream.dropout else 0
    passed = n if stream.dropout else 0
    read = (1 + branches) * n
    return dropped + LayerPart((MemoryBound("residual", read, n + mask, read + passed + mask, n + passed),))


def dropout(stream: ActivationStream) -> LayerPart:
    """What dropout keeps: a mask of one byte an element."""
    return LayerPart(kept=(SavedActivation("dropout mask", stream.here, 1),)) if stream.dropout else LayerPart()


def mlp(
    stream: ActivationStream,
    feedforward: int,
    activation: Activation,
    bias: bool,
    module: Literal["mlp", "shared_experts"] = "mlp",
) -> LayerPart:
    """Two products and the activation function between them; a gated one has twice the columns in the first. module: its name
    among those that can be recomputed alone."""
    tokens, hidden = stream.tokens, stream.hidden
    up = linear("up", tokens, feedforward * fan(activation), hidden, bias)
    part = up + activated(tokens * feedforward, activation) + linear("down", tokens, hidden, feedforward, bias)
    return part.module(module)


def fan(activation: Activation) -> int:
    """Inputs of an activation function for each of its outputs: the gate is one."""
    return 2 if activation in ("swiglu", "geglu") else 1


def activated(elements: int, activation: Activation) -> LayerPart:
    """What it reads is kept, unless what it writes tells, and what it writes, which the next product reads."""
    inputs = fan(activation) * elements
    read = () if activation == "relu" else (SavedActivation("up", inputs),)
    kept = (*read, SavedActivation("activation", elements))
    part = LayerPart((MemoryBound(activation, inputs, elements, inputs + elements, inputs),), kept=kept)
    # without what it reads it cannot be computed again
    return part.module("activation", None, {"activation"}) if read else part


def looked_up(stream: ActivationStream, rows: int, positions: int | None, types: int = 0) -> LayerPart:
    """Embedding of `rows` words (of all ranks' tokens, which they then add up), with learned positions and token types.

    It is not recomputed, nor is the output head.
    """
    operators = [MemoryBound("embedding", stream.whole, stream.whole, stream.whole, stream.whole)]
    tensors = [rows * stream.hidden]
    for table in filter(None, (positions, types)):
        operators.append(MemoryBound("add embedding", 2 * stream.here, stream.here, stream.here, stream.here))
        tensors.append(table * stream.hidden)
    return LayerPart(tuple(operators), tuple(tensors)) + left(stream) + never_recomputed(dropout(stream))


def output_head(stream: ActivationStream, rows: int, tied: bool) -> LayerPart:
    """The last norm, then `predicted`."""
    return (
        LayerPart(kept=(SavedActivation("input", stream.here, group="input"),)) + norm(stream) + predicted(stream, rows, tied)
    )


def predicted(stream: ActivationStream, rows: int, tied: bool, bias: bool = False) -> LayerPart:
    """Output words' logits, `rows` of them on this rank, and their loss, which keeps them with four bytes each.

    Ranks that share the words tell each other the largest logit, the sum of exponents and the right word's logit.
    """
    tokens, hidden = stream.tokens, stream.hidden
    logits = tokens * rows
    tensors = (*(() if tied else (hidden * rows,)), *((rows,) if bias else ()))
    operators = (Matmul("head", tokens, rows, hidden), MemoryBound("loss", logits, logits, logits, logits))
    kept = (SavedActivation("head input", stream.here, group="input"), SavedActivation("logits", logits, 4, "input"))
    part = entered(stream) + LayerPart(operators, tensors, kept)
    if stream.shard.tensor > 1:
        part += LayerPart(exchanges=(Exchange("all_reduce", tokens, False),) * 3)
    return part


def never_recomputed(part: LayerPart) -> LayerPart:
    """The same with all that it keeps in the group that stays."""
    return LayerPart(part.operators, part.tensors, tuple(kept._replace(group="input") for kept in part.kept), part.exchanges)


def even_share(what: str, number: int, ranks: int, field: str = "tensor") -> int:
    """What one of `ranks` ranks gets of `number`. Raises FieldError where it does not come out even."""
    if number % ranks:
        fewer = next(divisor for divisor in range(min(ranks, 1024), 0, -1) if number % divisor == 0)
        message = f"{ranks} ranks do not divide {what} {number}; give a divisor of it, such as {fewer}"
        raise FieldError(("strategy", field), message)
    return number // ranks
