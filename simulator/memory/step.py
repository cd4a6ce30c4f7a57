"""One training step of a rank as allocations and frees, pass by pass and layer by layer, in the order of its schedule.

This is the only description of what is live when. A `Memory` reads it: `peak` adds bytes up, `allocator` has a replica of
PyTorch's caching allocator serve them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np

from scaleproof.simulator.memory.layers import LayerBytes, Tensors
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# The stream on which ZeRO stage 3 reduce-scatters gradients. What it has freed serves no other stream.
_SCATTER_STREAM: Final = 1


class Tensor(NamedTuple):
    """An allocated tensor: its holder, and its bytes. number: by which a memory knows it."""

    holder: str
    size_bytes: float
    number: int = 0


class RankPass(NamedTuple):
    """A pass of a rank over a microbatch in one of its chunks."""

    kind: Pass
    chunk: int
    microbatch: int


class Memory(Protocol):
    """Where tensors are allocated."""

    def allocate(self, holder: str, sizes_bytes: Iterable[float], stream: int = 0) -> list[Tensor]:
        """Allocates tensors of some sizes."""

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Frees allocated tensors."""

    def visit(self, layer: LayerBytes, allocate: Callable[[], None]) -> None:
        """Has a layer allocate and free, as often as there are equal layers."""


class UpdateBytes(NamedTuple):
    """Bytes of the tensors of an optimizer's step. received: gradients of other workers. copies: of gradients. working:
    temporaries."""

    received: Tensors
    copies: Tensors
    working: Tensors


class RankBytes(NamedTuple):
    """Bytes of the tensors of a rank.

    constant: by holder, that are allocated before the first step. states: those of the optimizer, which its first step
    allocates. chunks: the layers of each. update: of the optimizer's step. makes_gradients: whether backward passes allocate
    the gradients.
    """

    constant: dict[str, Tensors]
    states: Tensors
    chunks: Sequence[Sequence[LayerBytes]]
    update: UpdateBytes
    makes_gradients: bool


def forward(memory: Memory, layers: Sequence[LayerBytes]) -> list[list[Tensor]]:
    """A forward pass: each layer allocates what it keeps, and what it drops at its end. Returns what each layer keeps."""
    result: list[list[Tensor]] = []

    def allocate(layer: LayerBytes) -> None:
        gathered = memory.allocate("communication", layer.gathered)
        result[-1] = memory.allocate("activations", layer.kept) + memory.allocate("logits", layer.logits)
        fetched = memory.allocate("activations", layer.fetched)
        memory.free(memory.allocate("recomputed", layer.recomputed) + fetched + gathered)

    for layer in layers:
        result.append([])
        memory.visit(layer, partial(allocate, layer))
    return result


class Backward:
    """A backward pass: each layer, from the last to the first, computes its gradients and frees what it kept.

    makes: whether it allocates the gradients; otherwise it adds to those that exist. is_input: whether gradients of weights are
    left for another pass. gradients, left: what it allocated.
    """

    def __init__(self, memory: Memory, makes: bool = False, is_input: bool = False) -> None:
        self._memory, self._makes, self._is_input = memory, makes, is_input
        self.gradients: list[Tensor] = []
        self.left: list[Tensor] = []
        # the gradient of a layer's output, and of each of the layers that are recomputed together
        self._arrived: list[Tensor] = []
        self._again: list[list[Tensor]] = []
        # gradients that are reduce-scattered: of the layer, in a copy, and those that wait for the end of the pass
        self._unsharded: list[Tensor] = []
        self._reduced: list[Tensor] = []
        self._waiting: list[Tensor] = []

    def run(self, layers: Sequence[LayerBytes], kept: Sequence[list[Tensor]]) -> None:
        """Passes all layers. kept: what the forward pass kept of each."""
        for number in range(len(layers) - 1, -1, -1):
            together = _together(layers, number)
            self._memory.visit(layers[number], partial(self._layer, layers[number], kept[number], together))
        self._memory.free(self._arrived + self._unsharded + self._reduced + self._waiting)

    def _layer(self, layer: LayerBytes, kept: list[Tensor], together: Sequence[LayerBytes]) -> None:
        """One layer. together: those that are recomputed with it, up to it."""
        memory = self._memory
        memory.free(self._unsharded)
        # those of layers that are recomputed together are allocated before the last of these
        self._again = self._again or [memory.allocate("recomputed", one.recomputed) for one in together]
        copy = memory.allocate("communication", layer.reduced, _SCATTER_STREAM)
        self._unsharded = memory.allocate("communication", layer.unsharded)
        gathered = memory.allocate("communication", layer.gathered) + memory.allocate("activations", layer.fetched)
        self._input_gradient(layer)
        memory.free(gathered + self._again.pop() + kept)
        self._waiting += memory.allocate("communication", layer.waiting)
        if self._makes:
            scatters = any(np.any(size_bytes) for size_bytes in (*layer.reduced, *layer.waiting))
            self.gradients += memory.allocate("gradients", layer.gradients, _SCATTER_STREAM if scatters else 0)
        if self._is_input:
            self.left += memory.allocate("activations", layer.left)
        memory.free(self._reduced)
        self._reduced = copy

    def _input_gradient(self, layer: LayerBytes) -> None:
        """The gradient of a layer's input, from that of its output. Each operator allocates what it writes; the operator with
        the most also a gradient of weights."""
        memory, most = self._memory, max(range(len(layer.working)), key=layer.working.__getitem__)
        for number, working in enumerate(layer.working):
            written = memory.allocate("working", _parts(working - sum(one.size_bytes for one in self._arrived), layer.largest))
            if number == most:
                memory.free(memory.allocate("gradients" if self._makes else "working", layer.product))
            if written:
                memory.free(self._arrived)
                self._arrived = written
        memory.free(self._arrived)
        self._arrived = memory.allocate("working", layer.entry)


class Step:
    """The steps of a rank with a memory, pass by pass."""

    def __init__(self, memory: Memory, rank: RankBytes) -> None:
        self._memory, self._rank = memory, rank
        # by chunk: kept tensors of each layer and microbatch, those left for gradients of weights, and gradients
        self._kept: list[deque[list[list[Tensor]]]] = [deque() for _ in rank.chunks]
        self._left: list[deque[list[Tensor]]] = [deque() for _ in rank.chunks]
        self._gradients: dict[int, list[Tensor]] = {}
        self._has_states = False
        for holder, sizes_bytes in rank.constant.items():
            memory.allocate(holder, sizes_bytes)

    def take(self, one: RankPass) -> None:
        """A pass over a microbatch."""
        layers = self._rank.chunks[one.chunk]
        if one.kind == Pass.FORWARD:
            self._kept[one.chunk].append(forward(self._memory, layers))
        elif one.kind == Pass.WEIGHT:
            self._memory.free(self._left[one.chunk].popleft())
        else:
            makes = self._rank.makes_gradients and one.chunk not in self._gradients
            backward = Backward(self._memory, makes, one.kind == Pass.INPUT)
            backward.run(layers, self._kept[one.chunk].popleft())
            if makes:
                self._gradients[one.chunk] = backward.gradients
            if one.kind == Pass.INPUT:
                self._left[one.chunk].append(backward.left)

    def update(self) -> None:
        """The optimizer's step. Gradients that backward passes made are freed."""
        rank = self._rank
        update(self._memory, rank.update, () if self._has_states else rank.states)
        self._has_states = True
        for gradients in self._gradients.values():
            self._memory.free(gradients)
        self._gradients.clear()


def update(memory: Memory, own: UpdateBytes, states: Tensors = ()) -> None:
    """The optimizer's step. states: of the optimizer, which its first step allocates."""
    memory.free(memory.allocate("communication", own.received))
    temporary = memory.allocate("gradients", own.copies) + memory.allocate("working", own.working)
    memory.allocate("optimizer_states", states)
    memory.free(temporary)


def _parts(size_bytes: float, largest_bytes: int) -> Iterator[float]:
    """Sizes of tensors with a total, none of which is larger than another size, unless that is zero."""
    while 0 < largest_bytes < size_bytes:
        yield largest_bytes
        size_bytes -= largest_bytes
    yield size_bytes


def _together(layers: Sequence[LayerBytes], last: int) -> Sequence[LayerBytes]:
    """The layers that are recomputed together with the layer `last`, up to it."""
    first = last
    while layers[first].with_previous:
        first -= 1
    return layers[first : last + 1]
