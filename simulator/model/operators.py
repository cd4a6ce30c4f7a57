"""What a layer computes: operators with exact shapes, for one sample, from which FLOPs, bytes and times follow.

A multiply-add counts as two FLOPs. Elements are counted, not bytes: the training precision says how large they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Product(NamedTuple):
    """`batch` products of an m × k by a k × n matrix."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


class _Weighted(ABC):
    """A product of activations and weights: the gradients are products of the same sizes, turned round."""

    __slots__ = ()
    input_gradient: bool

    @abstractmethod
    def forward(self, samples: float) -> list[Product]:
        """The product of the forward pass over `samples` samples."""

    def backward(self, samples: float) -> list[Product]:
        """Those of the gradients of the input, where it has one, and of the weights."""
        ((rows, columns, inner, batch),) = self.forward(samples)
        weight = Product(inner, columns, rows, batch)
        return [Product(rows, inner, columns, batch), weight] if self.input_gradient else [weight]

    @property
    def forward_flops(self) -> float:
        return sum(product.flops for product in self.forward(1))

    @property
    def backward_flops(self) -> float:
        return sum(product.flops for product in self.backward(1))


@dataclass(frozen=True, slots=True)
class Matmul(_Weighted):
    """`count` products of `rows` × `inner` activations by `inner` × `columns` weights; a batch makes more rows.

    loads: rows of each of the products over the mean, `rows`; equal if empty. input_gradient: false for what reads the data
    itself.
    """

    name: str
    rows: int
    columns: int
    inner: int
    count: int = 1
    input_gradient: bool = True
    loads: tuple[float, ...] = ()

    def forward(self, samples: float) -> list[Product]:
        return [Product(round(self.rows * samples), self.columns, self.inner, self.count)]


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention: scores of `queries` × `keys` for each of `heads`.

    key_heads: of keys and values, which several heads of queries may share. width: of a query and a key; value_width: of a
    value. seen: share of the scores that a mask leaves, a half if causal; FLOPs count them all, as published formulae do.
    flash: one kernel that never writes the scores to memory (arXiv 2205.14135), else two products with passes over the scores
    between.
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

    @property
    def scores(self) -> int:
        """Elements of all score matrices."""
        return self.heads * self.queries * self.keys

    @property
    def forward_flops(self) -> float:
        return 2.0 * self.scores * (self.width + self.value_width)

    @property
    def backward_flops(self) -> float:
        return 2 * self.forward_flops

    def forward(self, samples: float) -> list[Product]:
        """Scores, then weighted values."""
        batch = max(1, round(self.heads * samples))
        return [Product(self.queries, self.keys, self.width, batch), Product(self.queries, self.value_width, self.keys, batch)]

    def backward(self, samples: float) -> list[Product]:
        """The gradients of values and of their weights, then of queries and of keys."""
        batch = max(1, round(self.heads * samples))
        return [
            Product(self.keys, self.value_width, self.queries, batch),
            Product(self.queries, self.keys, self.value_width, batch),
            Product(self.queries, self.width, self.keys, batch),
            Product(self.keys, self.width, self.queries, batch),
        ]


@dataclass(frozen=True, slots=True)
class Convolution(_Weighted):
    """A 2-D convolution: `positions` outputs a channel, each from kernel area × inputs values; `groups` apart from one another.

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

    @property
    def weights(self) -> int:
        return self.outputs * self._inner

    @property
    def _inner(self) -> int:
        return self.inputs // self.groups * self.kernel[0] * self.kernel[1]

    def forward(self, samples: float) -> list[Product]:
        """What it comes to (implicit GEMM)."""
        return [Product(round(self.positions * samples), self.outputs // self.groups, self._inner, self.groups)]


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Bound by memory: norms, activations, dropout, additions, pooling, look-ups, losses.

    read, written: elements of the forward pass; backward_read, backward_written: of the backward pass.
    """

    name: str
    read: int
    written: int
    backward_read: int
    backward_written: int

    @property
    def forward_flops(self) -> float:
        return 0.0

    @property
    def backward_flops(self) -> float:
        return 0.0


Operator = Matmul | Attention | Convolution | MemoryBound


class SavedActivation(NamedTuple):
    """An activation that is kept from the forward pass for the backward pass: elements for one sample.

    element_bytes: of each, where it is not the training precision's (dropout masks have one byte, what losses keep four).
    group: what recomputation can leave out together ("attention" scores; "layer" what a whole layer needs inside;
    "input" what remains when it is recomputed from its input).
    """

    name: str
    elements: int
    element_bytes: int | None = None
    group: str = "layer"


class Module(NamedTuple):
    """Part of a layer that can be recomputed alone: indices into the layer's operators, kept activations and exchanges.

    kept: activations that need not be kept where the module is recomputed.
    """

    name: str
    operators: tuple[int, ...]
    kept: tuple[int, ...] = ()
    exchanges: tuple[int, ...] = ()

    def shifted(self, operators: int, kept: int, exchanges: int) -> Module:
        """The same module behind that number of other operators, kept activations and exchanges."""
        return Module(
            self.name,
            tuple(operators + index for index in self.operators),
            tuple(kept + index for index in self.kept),
            tuple(exchanges + index for index in self.exchanges),
        )


Axis = Literal["tensor", "context", "expert", "expert_tensor"]


class Routed(NamedTuple):
    """Tokens that are sent to `active` of `experts` experts each, or what the experts made of them, which is combined."""

    experts: int
    active: int
    combines: bool


class Exchange(NamedTuple):
    """A collective among ranks that share a layer, in each pass over it: elements of the whole buffer, for one sample.

    hidden: it runs beside computation that does not wait for it. axis: which of the degrees those ranks differ in. beside: name
    of the operator that it runs beside, if it is hidden; all of the pass, if empty. routed: which tokens it moves, of an
    all-to-all among experts, whose elements are those of all copies of a token.
    """

    op: str
    elements: int
    backward: bool
    hidden: bool = False
    axis: Axis = "tensor"
    beside: str = ""
    routed: Routed | None = None
