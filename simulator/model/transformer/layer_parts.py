"""Parts of transformer layers: one rank's share of operators, parameters, kept activations and collectives.

The sum of parts is a layer. Kept activations follow arXiv 2205.05198, section 4: those of matrix products, softmax, activation
functions and dropout, but not norms' statistics and biases, which are small. Kernels are fused where training frameworks fuse
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer, Shard
from scaleproof.simulator.model.operators import Axis, Exchange, Matmul, MemoryBound, SavedActivation

Norm = Literal["layer", "rms"]
# Where a branch is normalised: its input, its output, or both.
Norms = Literal["before", "after", "around"]
Activation = Literal["relu", "gelu", "swiglu", "geglu"]


class ActivationStream(NamedTuple):
    """Activations between parts: `tokens` × `hidden` elements per sample."""

    tokens: int
    hidden: int
    shard: Shard
    norm: Norm
    dropout: bool

    @classmethod
    def checked(
        cls, tokens: int, hidden: int, shard: Shard, norm: Norm, dropout: bool, experts: int | None = None
    ) -> ActivationStream:
        """The stream of a rank. experts: number in each mixture, None without mixtures. Raises FieldError if the tokens or the
        experts cannot be divided so."""
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
    def expert_stream(self) -> ActivationStream:
        """The stream of the ranks that share each expert's matrices, with only their tokens if they are fewer than the
        tensor-parallel ranks."""
        ranks = self.shard.expert_tensor
        if ranks is None:
            return self
        shard = self.shard._replace(tensor=ranks, sequence=ranks > 1)
        return self._replace(tokens=self.tokens // self.shard.tensor * ranks, shard=shard)

    @property
    def full_elements(self) -> int:
        """Elements that matrix products read and write."""
        return self.tokens * self.hidden

    @property
    def local_elements(self) -> int:
        """Elements that a rank has between matrix products, fewer with sequence parallelism."""
        return self.full_elements // self.shard.tensor if self.shard.sequence else self.full_elements


def _check_folding(shard: Shard, ranks: int, experts: bool) -> None:
    """Raises FieldError if `ranks` of the tensor-parallel ranks cannot share each expert's matrices."""
    field = ("strategy", "expert_tensor")
    if not experts:
        raise FieldError(field, "there are no experts to divide; leave it out")
    even_share("tensor", shard.tensor, ranks, "expert_tensor")
    if not shard.sequence:
        message = f"{ranks} of {shard.tensor} tensor-parallel ranks, which all have the same tokens"
        raise FieldError(field, f"{message}; set strategy.sequence_parallel=true, or leave it out")


def linear(name: str, rows: int, columns: int, inner: int, bias: bool) -> Layer:
    """A matrix product and its weights. bias: whether each column has one."""
    return Layer(operators=(Matmul(name, rows, columns, inner),), tensors=(inner * columns, *((columns,) if bias else ())))


def norm(stream: ActivationStream) -> Layer:
    """A norm, whose parameters every rank has in full."""
    name = "rms norm" if stream.norm == "rms" else "norm"
    return Layer(operators=(norm_of(name, stream.local_elements),), tensors=norm_tensors(stream.norm, stream.hidden))


def norm_of(name: str, elements: int) -> MemoryBound:
    """The operator of a norm; its backward pass reads the input and the gradient of the output."""
    return MemoryBound(name, elements, elements, 2 * elements, elements)


def norm_tensors(kind: Norm, width: int) -> tuple[int, ...]:
    """Elements of a norm's parameter tensors: weights and biases of a layer norm, weights of an RMS norm."""
    return (width, width) if kind == "layer" else (width,)


def block(
    stream: ActivationStream,
    branches: Sequence[Layer],
    parallel: bool | Literal["one norm"] = False,
    around: Sequence[Layer] = (),
    norms: Norms = "before",
) -> Layer:
    """Branches with norms and residual additions: one after the other, or all in parallel on the same input, which one norm or
    one for each branch normalises.

    Norms before the branches, after them or after the additions keep the same number of activations. around: the collectives
    around each branch, `branch_collectives` if empty; parallel branches share equal ones.
    """
    around = around or [branch_collectives(stream)] * len(branches)
    layer = Layer(kept=(SavedActivation("input", stream.local_elements, group="input"),))
    count = {"before": 1, "after": 1, "around": 2}[norms] * (1 if parallel == "one norm" else len(branches))
    if parallel:
        inner = sum([norm(stream)] * count + list(branches), Layer())
        layer += inner + sum(dict.fromkeys(around), Layer()) + residual(stream, len(branches))
    else:
        normed = norm(stream)
        before, after = normed if norms != "after" else Layer(), normed if norms != "before" else Layer()
        for branch, collectives in zip(branches, around, strict=True):
            layer += before + _with_collectives(branch, collectives) + after + residual(stream)
    layer += Layer(kept=(SavedActivation("norms", count * stream.local_elements),))
    if not parallel and len(branches) > 1:
        layer += Layer(kept=(SavedActivation("sums", (len(branches) - 1) * stream.local_elements),))
    return layer.module("layernorm", {"norm", "rms norm"}, {"norms"}, exchanges=False)


def _with_collectives(branch: Layer, collectives: Layer) -> Layer:
    """A branch with the collectives around it, which also belong to a module that is the whole branch."""
    part = branch + collectives
    added = tuple(range(len(branch.exchanges), len(part.exchanges)))
    modules = (m._replace(exchanges=m.exchanges + added) if m.name in ("mlp", "moe") else m for m in part.modules)
    return replace(part, modules=tuple(modules))


def branch_collectives(stream: ActivationStream, axis: Axis = "tensor") -> Layer:
    """The collectives at the input and at the output of a branch whose matrices are shared."""
    return input_collectives(stream, axis) + output_collectives(stream, axis)


def input_collectives(stream: ActivationStream, axis: Axis = "tensor") -> Layer:
    """The collectives at an input of which all ranks need all tokens, and whose gradients are summed over ranks."""
    if stream.shard.tensor == 1:
        return Layer()
    if stream.shard.sequence:
        passes = (("all_gather", False), ("reduce_scatter", True))
        exchanges = tuple(Exchange(op, stream.full_elements, backward, axis=axis) for op, backward in passes)
        # the weight gradients need all tokens again; their gathering overlaps the input gradient (arXiv 2205.05198, 4.2.2)
        again = Exchange("all_gather", stream.full_elements, True, hidden=True, axis=axis)
        return Layer(exchanges=(*exchanges, again) if stream.shard.regathers else exchanges)
    return Layer(exchanges=(Exchange("all_reduce", stream.full_elements, True, axis=axis),))


def output_collectives(stream: ActivationStream, axis: Axis = "tensor") -> Layer:
    """The collectives at an output of which each rank has a partial sum for all tokens."""
    if stream.shard.tensor == 1:
        return Layer()
    if stream.shard.sequence:
        passes = (("reduce_scatter", False), ("all_gather", True))
        return Layer(exchanges=tuple(Exchange(op, stream.full_elements, backward, axis=axis) for op, backward in passes))
    return Layer(exchanges=(Exchange("all_reduce", stream.full_elements, False, axis=axis),))


def residual(stream: ActivationStream, branches: int = 1) -> Layer:
    """Dropout, if any, and the residual addition in one kernel; its backward pass adds the gradients of trunk and branches."""
    n = stream.local_elements
    # a dropout mask has one byte per element, half of a 16-bit element
    mask = n // 2 if stream.dropout else 0
    dropped = n if stream.dropout else 0
    read = (1 + branches) * n
    return dropout(stream) + Layer(operators=(MemoryBound("residual", read, n + mask, read + dropped + mask, n + dropped),))


def dropout(stream: ActivationStream) -> Layer:
    """The activation that dropout keeps, if there is dropout: a mask of one byte per element."""
    return Layer(kept=(SavedActivation("dropout mask", stream.local_elements, 1),)) if stream.dropout else Layer()


def mlp(
    stream: ActivationStream,
    feedforward: int,
    activation: Activation,
    bias: bool,
    module: Literal["mlp", "shared_experts"] = "mlp",
) -> Layer:
    """An MLP: two products and the activation function between them; if it is gated, the first product has twice the columns.

    module: name of the module that can be recomputed alone.
    """
    tokens, hidden = stream.tokens, stream.hidden
    up = linear("up", tokens, feedforward * activation_inputs(activation), hidden, bias)
    part = up + activation_function(tokens * feedforward, activation) + linear("down", tokens, hidden, feedforward, bias)
    return part.module(module)


def activation_inputs(activation: Activation) -> int:
    """Inputs of an activation function per output: two if it is gated, else one."""
    return 2 if activation in ("swiglu", "geglu") else 1


def activation_function(elements: int, activation: Activation) -> Layer:
    """An activation function with `elements` outputs. It keeps its input, which ReLU does not need, and its output, which the
    next product reads."""
    inputs = activation_inputs(activation) * elements
    kept_input = () if activation == "relu" else (SavedActivation("up", inputs),)
    kept = (*kept_input, SavedActivation("activation", elements))
    part = Layer(operators=(MemoryBound(activation, inputs, elements, inputs + elements, inputs),), kept=kept)
    # it can be recomputed only from its input
    return part.module("activation", None, {"activation"}) if kept_input else part


def embedding(stream: ActivationStream, rows: int, positions: int | None, types: int = 0) -> Layer:
    """The embedding of tokens, with learned positions and token types if there are any; it is not recomputed.

    rows: words of this rank's part of the table; ranks sum their results. positions, types: rows of these tables.
    """
    operators = [
        MemoryBound("embedding", stream.full_elements, stream.full_elements, stream.full_elements, stream.full_elements)
    ]
    tensors = [rows * stream.hidden]
    for table in filter(None, (positions, types)):
        operators.append(
            MemoryBound(
                "add embedding", 2 * stream.local_elements, stream.local_elements, stream.local_elements, stream.local_elements
            )
        )
        tensors.append(table * stream.hidden)
    return (
        Layer(operators=tuple(operators), tensors=tuple(tensors))
        + output_collectives(stream)
        + never_recomputed(dropout(stream))
    )


def output_head(stream: ActivationStream, rows: int, tied: bool, bias: bool = False, softcap: bool = False) -> Layer:
    """The last norm, then the logits of `rows` words and the loss."""
    kept = (SavedActivation("input", stream.local_elements, group="input"),)
    return Layer(kept=kept) + norm(stream) + logits_and_loss(stream, rows, tied, bias, softcap)


def logits_and_loss(stream: ActivationStream, rows: int, tied: bool, bias: bool = False, softcap: bool = False) -> Layer:
    """The logits of this rank's `rows` words, and the loss, which keeps them with four bytes each.

    Ranks that share the words reduce the largest logit, the sum of exponentials and the logit of the target. tied: whether the
    weights are those of the embedding. softcap: whether logits are bounded by a scaled tanh, which keeps its output.
    """
    tokens, hidden = stream.tokens, stream.hidden
    logits = tokens * rows
    tensors = (*(() if tied else (hidden * rows,)), *((rows,) if bias else ()))
    capped = MemoryBound("softcap", logits, logits, 2 * logits, logits)
    loss = MemoryBound("loss", logits, logits, logits, logits)
    operators = (Matmul("head", tokens, rows, hidden), *((capped,) if softcap else ()), loss)
    kept = (
        SavedActivation("head input", stream.local_elements, group="input"),
        *((SavedActivation("capped", logits, group="input"),) if softcap else ()),
        SavedActivation("logits", logits, 4, "input"),
    )
    part = input_collectives(stream) + Layer(operators=operators, tensors=tensors, kept=kept)
    if stream.shard.tensor > 1:
        part += Layer(exchanges=(Exchange("all_reduce", tokens, False),) * 3)
    return part


def never_recomputed(part: Layer) -> Layer:
    """The part with all kept activations in the group "input", which recomputation does not drop."""
    return Layer(
        operators=part.operators,
        tensors=part.tensors,
        kept=tuple(kept._replace(group="input") for kept in part.kept),
        exchanges=part.exchanges,
    )


def even_share(name: str, number: int, ranks: int, field: str = "tensor") -> int:
    """The share of `number` of each of `ranks` ranks. Raises FieldError for strategy.`field` if the division leaves a
    remainder."""
    if number % ranks:
        divisor = next(divisor for divisor in range(min(ranks, 1024), 0, -1) if number % divisor == 0)
        message = f"{ranks} ranks do not divide {name} {number}; give a divisor of it, such as {divisor}"
        raise FieldError(("strategy", field), message)
    return number // ranks
