"""Operators of layers with their exact shapes for one sample, from which FLOPs, bytes and times follow.

A multiply-add counts as two FLOPs. Memory is counted in elements, whose size depends on the training precision.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple


class Product(NamedTuple):
    """`batch` products of an m × k matrix and a k × n matrix."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """FLOPs of the product, two per multiply-add."""
        return 2.0 * self.m * self.n * self.k * self.batch


class _Weighted(ABC):
    """A product of activations and weights, whose gradients are products of the same sizes.

    input_gradient: false if nothing below needs it, as where the product reads input data. weight_gradient: false if the
    weights are frozen. read, written: elements of activations for one sample.
    """

    input_gradient: bool
    weight_gradient: bool

    @property
    @abstractmethod
    def read(self) -> int: ...

    @property
    @abstractmethod
    def written(self) -> int: ...

    @property
    @abstractmethod
    def weights(self) -> int: ...

    @abstractmethod
    def forward(self, samples: float) -> list[Product]:
        """The product of the forward pass over `samples` samples."""

    def backward(self, samples: float) -> list[Product]:
        """The products of the input gradient and of the weight gradient, where they are needed."""
        ((rows, columns, inner, batch),) = self.forward(samples)
        inputs, weights = Product(rows, inner, columns, batch), Product(inner, columns, rows, batch)
        return [inputs] * self.input_gradient + [weights] * self.weight_gradient

    @functools.cached_property
    def has_backward(self) -> bool:
        """Whether it computes any gradient."""
        return self.input_gradient or self.weight_gradient

    @functools.cached_property
    def trained_weights(self) -> int:
        """Number of weights whose gradients the backward pass computes."""
        return self.weights if self.weight_gradient else 0

    @functools.cached_property
    def gradient_elements(self) -> int:
        """Elements per sample of the gradients of activations that the backward pass reads and writes."""
        return self.written + (self.read if self.input_gradient else 0) if self.has_backward else 0

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes, each once; weights once for all samples."""
        return samples * (self.read + self.written) + self.weights

    @functools.cached_property
    def forward_flops(self) -> float:
        return sum(product.flops for product in self.forward(1))

    @functools.cached_property
    def backward_flops(self) -> float:
        return sum(product.flops for product in self.backward(1))


@dataclass(frozen=True)
class Matmul(_Weighted):
    """`count` products of `rows` × `inner` activations and `inner` × `columns` weights; a batch has more rows.

    loads: rows of each of the products over their mean, `rows`; all are equal if empty.
    """

    name: str
    rows: int
    columns: int
    inner: int
    count: int = 1
    input_gradient: bool = True
    loads: tuple[float, ...] = ()
    weight_gradient: bool = True

    @functools.cached_property
    def read(self) -> int:
        """Elements of the activations that it reads for one sample."""
        return self.rows * self.inner * self.count

    @functools.cached_property
    def written(self) -> int:
        """Elements that it writes for one sample."""
        return self.rows * self.columns * self.count

    @functools.cached_property
    def weights(self) -> int:
        """Number of weights."""
        return self.columns * self.inner * self.count

    def forward(self, samples: float) -> list[Product]:
        """The product of all samples' rows and the weights."""
        return [Product(round(self.rows * samples), self.columns, self.inner, self.count)]


@dataclass(frozen=True)
class StepwiseMatmul(Matmul):
    """A product of weights and the state of a recurrent layer, whose `rows` tokens follow one after the other; its weight
    gradient is one product over all tokens, as cuDNN computes it."""

    def forward(self, samples: float) -> list[Product]:
        """A product of all samples' rows for each token."""
        return [Product(round(samples), self.columns, self.inner, self.count)] * self.rows

    def backward(self, samples: float) -> list[Product]:
        """The products of the state's gradient for each token, and that of the weight gradient."""
        weights = Product(self.inner, self.columns, round(self.rows * samples), self.count)
        states = [Product(round(samples), self.inner, self.columns, self.count)] * self.rows
        return states * self.input_gradient + [weights] * self.weight_gradient


@dataclass(frozen=True)
class Scan:
    """A linear recurrence over the tokens, computed in chunks by matrix products: state-space duality (arXiv 2405.21060,
    section 6), gated linear attention (arXiv 2312.06635, section 4) or the gated delta rule (arXiv 2412.06464, section 3).

    heads: number of states of `width` × `value_width`. key_heads: heads of keys and queries, which several states may share.
    chunk: number of its tokens. delta: whether a value replaces what the state has for its key, for which each chunk solves a
    triangular system. has_backward: whether what it reads needs gradients.
    """

    name: str
    heads: int
    key_heads: int
    tokens: int
    width: int
    value_width: int
    chunk: int
    delta: bool = False
    has_backward: bool = True
    trained_weights: ClassVar[int] = 0

    @functools.cached_property
    def between(self) -> tuple[int, int]:
        """Elements per sample that the kernel between the products reads and writes in both passes: the pass of states from
        chunk to chunk, which the backward pass repeats before that of their gradients."""
        return 2 * self.states, 4 * self.states

    @property
    def chunks(self) -> int:
        """Number of chunks of a sample."""
        return -(-self.tokens // self.chunk)

    @functools.cached_property
    def states(self) -> int:
        """Elements of the states between chunks; in four bytes, they count as two elements of 16 bits."""
        return 2 * self.heads * self.chunks * self.width * self.value_width

    @functools.cached_property
    def read(self) -> int:
        """Elements of keys, queries, values and decays of one sample."""
        return self.tokens * (2 * self.key_heads * self.width + self.heads * (self.value_width + 1))

    @functools.cached_property
    def written(self) -> int:
        """Elements that it writes for one sample."""
        return self.tokens * self.heads * self.value_width

    @functools.cached_property
    def gradient_elements(self) -> int:
        """Elements per sample of the gradients of activations that the backward pass reads and writes."""
        return self.read + self.written if self.has_backward else 0

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes. States are written, read and written by the pass from chunk to
        chunk, and read."""
        return samples * (self.read + self.written + 4 * self.states)

    @functools.cached_property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass per sample."""
        return sum(product.flops for product in self.forward(1))

    @functools.cached_property
    def backward_flops(self) -> float:
        """FLOPs of the backward pass per sample."""
        return sum(product.flops for product in self.backward(1)) if self.has_backward else 0.0

    def forward(self, samples: float) -> list[Product]:
        """The products of scores within chunks, of values with them, of each chunk's state, and of states with queries; then
        those of the triangular system."""
        size, keys, values = self.chunk, self.width, self.value_width
        shared, each = (max(1, round(heads * self.chunks * samples)) for heads in (self.key_heads, self.heads))
        products = [
            Product(size, size, keys, shared), Product(size, values, size, each), Product(keys, values, size, each),
            Product(size, values, keys, each),
        ]  # fmt: skip
        solved = [Product(size, size, keys, shared), Product(size, keys + values, size, each)]
        return products + solved * self.delta

    def backward(self, samples: float) -> list[Product]:
        """The products of the gradients of both factors of each product."""
        return [
            product
            for m, n, k, batch in self.forward(samples)
            for product in (Product(m, k, n, batch), Product(k, n, m, batch))
        ]


@dataclass(frozen=True)
class Attention:
    """Softmax attention: `queries` × `keys` scores for each of `heads` heads.

    key_heads: number of heads of keys and values, which several query heads may share. width: of queries and keys in a head;
    value_width: of values. seen: share of the scores that a mask leaves, a half if causal; FLOPs count all scores, like
    published formulae. flash: a single kernel that does not write the scores to memory (arXiv 2205.14135), else two products
    with passes over the scores between them. pieces: parts of the keys that arrive one after another around a ring, each with
    its own flash kernel. has_backward: whether queries, keys or values need gradients, which are then all computed.
    """

    name: str
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    seen: float = 0.5
    flash: bool = False
    pieces: int = 1
    has_backward: bool = True
    trained_weights: ClassVar[int] = 0

    @functools.cached_property
    def scores(self) -> int:
        """Elements of all score matrices."""
        return self.heads * self.queries * self.keys

    @functools.cached_property
    def between(self) -> tuple[int, int]:
        """Elements per sample that the kernel between the products reads and writes in both passes, without a flash kernel: a
        fused softmax, whose backward pass reads its output and the gradient of its output."""
        return 2 * self.scores, 3 * self.scores

    @functools.cached_property
    def read(self) -> int:
        """Elements of queries, keys and values of one sample."""
        return self.heads * self.queries * self.width + self.key_heads * self.keys * (self.width + self.value_width)

    @functools.cached_property
    def written(self) -> int:
        """Elements that it writes for one sample."""
        return self.heads * self.queries * self.value_width

    @functools.cached_property
    def gradient_elements(self) -> int:
        """Elements per sample of the gradients of activations that the backward pass reads and writes."""
        scores = 0 if self.flash else 2 * self.scores
        return self.read + self.written + scores if self.has_backward else 0

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes, each once. Without a flash kernel both products and the softmax
        between them write and read the scores."""
        return samples * (self.read + self.written + (0 if self.flash else 4 * self.scores))

    @functools.cached_property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass per sample."""
        return 2.0 * self.scores * (self.width + self.value_width)

    @functools.cached_property
    def backward_flops(self) -> float:
        """FLOPs of the backward pass per sample."""
        return 2 * self.forward_flops if self.has_backward else 0.0

    def forward(self, samples: float) -> list[Product]:
        """The products of the scores and of the weighted values."""
        batch = max(1, round(self.heads * samples))
        return [Product(self.queries, self.keys, self.width, batch), Product(self.queries, self.value_width, self.keys, batch)]

    def backward(self, samples: float) -> list[Product]:
        """The products of the gradients of values, of the softmax weights, of queries and of keys."""
        batch = max(1, round(self.heads * samples))
        return [
            Product(self.keys, self.value_width, self.queries, batch),
            Product(self.queries, self.keys, self.value_width, batch),
            Product(self.queries, self.width, self.keys, batch),
            Product(self.keys, self.width, self.queries, batch),
        ]


@dataclass(frozen=True)
class Convolution(_Weighted):
    """A 2-D convolution with `positions` outputs per channel and `groups` independent groups of channels.

    input_elements: of the activation that it reads.
    """

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    positions: int
    input_elements: int
    groups: int = 1
    input_gradient: bool = True
    weight_gradient: bool = True

    @functools.cached_property
    def read(self) -> int:
        """Elements of the activations that it reads for one sample."""
        return self.input_elements

    @functools.cached_property
    def written(self) -> int:
        """Elements that it writes for one sample."""
        return self.positions * self.outputs

    @functools.cached_property
    def weights(self) -> int:
        """Number of weights."""
        return self.outputs * self._inner

    @functools.cached_property
    def _inner(self) -> int:
        return self.inputs // self.groups * self.kernel[0] * self.kernel[1]

    def forward(self, samples: float) -> list[Product]:
        """The equivalent matrix product (implicit GEMM)."""
        return [Product(round(self.positions * samples), self.outputs // self.groups, self._inner, self.groups)]


# Products of single elements, by PyTorch's names, and the largest factor that counts as broadcast, as a share of the output.
_PRODUCTS: Final = frozenset({"mul", "div", "addcmul"})
_MOST_BROADCAST: Final = 0.5


@dataclass(frozen=True)
class MemoryBound:
    """A memory-bound operator: norm, activation function, dropout, addition, pooling, look-up or loss.

    read, written: elements of the forward pass; backward_read, backward_written: of the backward pass.
    """

    name: str
    read: int
    written: int
    backward_read: int
    backward_written: int

    # only products count as FLOPs
    forward_flops: ClassVar[float] = 0.0
    backward_flops: ClassVar[float] = 0.0
    trained_weights: ClassVar[int] = 0

    @functools.cached_property
    def has_backward(self) -> bool:
        """Whether it computes any gradient."""
        return bool(self.backward_read or self.backward_written)

    @functools.cached_property
    def gradient_elements(self) -> int:
        """Elements per sample of the gradients of activations that the backward pass reads and writes."""
        return self.written + self.backward_written if self.has_backward else 0

    @functools.cached_property
    def backward_moved(self) -> int:
        """Elements per sample that the backward pass reads and writes.

        The gradient of a factor that is broadcast, such as a scale of each channel, is a product with all elements, which a
        kernel writes, and its sum, which another reads: the output's gradient is read once more, and the product moved twice.
        """
        moved = self.backward_read + self.backward_written
        factor = self.read - self.written
        is_broadcast = self.name in _PRODUCTS and 0 < factor < _MOST_BROADCAST * self.written
        return moved + 3 * self.written if is_broadcast and self.has_backward else moved

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes."""
        return samples * (self.read + self.written)


@dataclass(frozen=True)
class WeightPass(MemoryBound):
    """A memory-bound operator on weights, such as dequantisation, whose elements are the same for any number of samples.

    weights: number of those that it writes. moved: elements, of the size of activations, that it reads and writes. kernels:
    their number. in_backward: whether the backward pass repeats it.
    """

    weights: int = 0
    moved: int = 0
    kernels: int = 1
    in_backward: bool = False

    @functools.cached_property
    def has_backward(self) -> bool:
        """Whether the backward pass repeats it."""
        return self.in_backward

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes."""
        return float(self.moved)


Operator = Matmul | Attention | Scan | Convolution | MemoryBound


class SavedActivation(NamedTuple):
    """An activation that is kept from the forward pass for the backward pass. elements: for one sample.

    element_bytes: if not that of the training precision (one for dropout masks, four for the logits that losses keep).
    group: for recomputation: "attention" for scores, "layer" for activations inside a layer, "input" for those that remain when
    the layer is recomputed from its input.
    """

    name: str
    elements: int
    element_bytes: float | None = None
    group: str = "layer"


class Module(NamedTuple):
    """Part of a layer that can be recomputed alone: indices into the layer's operators, kept activations and exchanges.

    kept: activations that need not be kept if the module is recomputed.
    """

    name: str
    operators: tuple[int, ...]
    kept: tuple[int, ...] = ()
    exchanges: tuple[int, ...] = ()

    def shifted(self, operators: int, kept: int, exchanges: int) -> Module:
        """The module with its indices increased by these numbers."""
        return Module(
            self.name,
            tuple(operators + index for index in self.operators),
            tuple(kept + index for index in self.kept),
            tuple(exchanges + index for index in self.exchanges),
        )


# Begin of the names of operators that fine-tuning adds to a layer.
ADDED: Final = "adapter "


def is_added(operator: Operator) -> bool:
    """Whether fine-tuning adds the operator: one of an adapter, or a pass over frozen weights."""
    return isinstance(operator, WeightPass) or operator.name.startswith(ADDED)


Axis = Literal["tensor", "context", "expert", "expert_tensor", "tables", "features"]


class Routed(NamedTuple):
    """Tokens that are each dispatched to `active` of `experts` experts, or whose expert outputs are combined. The experts of a
    token are in `active_groups` of `groups` equal groups."""

    experts: int
    active: int
    combines: bool
    groups: int = 1
    active_groups: int = 1

    def visited(self, bins: float) -> float:
        """Expected number of `bins` equal parts of the experts that have some of a token's.

        Its groups, and then its experts in them, are drawn uniformly. A part of q of n experts has none of k with the
        hypergeometric probability C(n − q, k) / C(n, k). Where parts and groups do not nest, groups do not limit.
        """
        if self.active_groups >= self.groups:
            return _visited(bins, self.experts, self.active)
        share = self.active_groups / self.groups
        if bins % self.groups == 0:
            return _visited(bins * share, self.experts * share, self.active)
        within, rest = divmod(self.groups, int(bins))
        if rest:
            return _visited(bins, self.experts, self.active)
        # n of the groups of a part are among a token's
        count, draws, each = self.active_groups, math.comb(self.groups, self.active_groups), self.experts / self.groups
        chosen = [math.comb(within, n) * math.comb(self.groups - within, count - n) for n in range(min(within, count) + 1)]
        missed = (_missed(n * each, self.experts * share, self.active) for n in range(len(chosen)))
        return bins * (1 - sum(ways * one for ways, one in zip(chosen, missed, strict=True)) / draws)


def _visited(bins: float, experts: float, active: int) -> float:
    return bins * (1 - _missed(experts / bins, experts, active))


def _missed(part: float, experts: float, active: int) -> float:
    """Probability that none of `active` different experts, drawn uniformly of `experts`, is one of `part` of them."""
    if active >= experts:
        return float(part == 0)
    return math.prod(max(0.0, experts - part - drawn) / (experts - drawn) for drawn in range(active))


class Exchange(NamedTuple):
    """A collective among ranks that share a layer, in the forward or the backward pass. elements: whole buffer, for one sample.

    hidden: whether it overlaps computation that does not wait for it. axis: the parallel dimension that the ranks differ in.
    overlapped: name of the operator that a hidden collective overlaps; the whole pass if empty. routed: for an all-to-all of
    experts, the tokens that it moves; its elements are those of all copies of a token. element_bytes: if not as in training.
    one_way: elements of an all-to-all that the rank with the most moves in one direction beyond those in the other.
    """

    op: str
    elements: int
    backward: bool
    hidden: bool = False
    axis: Axis = "tensor"
    overlapped: str = ""
    routed: Routed | None = None
    element_bytes: int | None = None
    one_way: int = 0
