"""The training steps of a rank as allocations and frees in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.memory.allocator.blocks import MemoryBlock
from scaleproof.simulator.memory.allocator.caching import CachingAllocator
from scaleproof.simulator.memory.allocator.passes import RankPass
from scaleproof.simulator.memory.allocator.tensors import LayerTensors, RankTensors, divided
from scaleproof.simulator.memory.result import HOLDERS
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# The stream on which ZeRO stage 3 reduce-scatters gradients.
_SCATTER_STREAM: Final = 1

# An allocated tensor, with its holder.
Tensor = tuple[str, MemoryBlock]


class StepMoment(NamedTuple):
    """When something is allocated: at a layer in a pass of a rank, or in the optimizer's step."""

    phase: str
    chunk: int
    microbatch: int
    layer: str


_START: Final = StepMoment("start", 0, 0, "")
_OPTIMIZER: Final = StepMoment("optimizer step", 0, 0, "")


class TrainingSteps:
    """Steps of one rank, whose tensors an allocator allocates and frees in the order of the passes.

    holders_bytes, moment: allocated bytes by holder, and the time, at the peak of allocated bytes.
    """

    def __init__(self, rank: RankTensors, passes: Sequence[RankPass], allocator: CachingAllocator) -> None:
        self._rank, self._passes, self._allocator = rank, passes, allocator
        self._now = self.moment = _START
        self._bytes = dict.fromkeys(HOLDERS, 0)
        self.holders_bytes: dict[str, int] = dict(self._bytes)
        # by chunk: kept tensors of each layer and microbatch, those left for gradients of weights, and gradients
        self._kept: list[deque[list[list[Tensor]]]] = [deque() for _ in rank.chunks]
        self._left: list[deque[list[Tensor]]] = [deque() for _ in rank.chunks]
        self._gradients: dict[int, list[Tensor]] = {}
        self._has_states = False
        for holder, sizes in rank.constant.items():
            self._allocate(holder, sizes)

    def run(self, steps: int) -> None:
        """Takes a number of steps. Raises DeviceFullError if the device has too little memory."""
        takes: dict[Pass, Callable[[RankPass], None]] = {
            Pass.FORWARD: self._forward, Pass.BACKWARD: self._backward, Pass.INPUT: self._backward, Pass.WEIGHT: self._weights,
        }  # fmt: skip
        for _ in range(steps):
            for each in self._passes:
                takes[each.kind](each)
            self._optimize()

    def _forward(self, each: RankPass) -> None:
        """Each layer allocates what it keeps, and what it drops at its end."""
        layers = self._rank.chunks[each.chunk]
        kept = []
        for layer in self._through(layers, "forward", each):
            gathered = self._allocate("communication", (layer.gathered,))
            own = self._allocate("activations", layer.kept) + self._allocate("logits", (layer.logits,))
            kept.append(own)
            self._free(self._allocate("recomputed", layer.recomputed) + gathered)
        self._kept[each.chunk].append(kept)

    def _backward(self, each: RankPass) -> None:
        """Each layer, from the last to the first, computes its gradients and frees what it kept.

        Recomputed activations of layers that are recomputed together are allocated before the last of these.
        """
        layers = self._rank.chunks[each.chunk]
        kept = self._kept[each.chunk].popleft()
        makes = self._rank.makes_gradients and each.chunk not in self._gradients
        gradients: list[Tensor] = []
        again: list[list[Tensor]] = []
        arrived: list[Tensor] = []
        unsharded: list[Tensor] = []
        reduced: list[Tensor] = []
        waiting: list[Tensor] = []
        left: list[Tensor] = []
        for layer in self._through(layers, "backward", each):
            self._free(unsharded)
            again = again or [self._allocate("recomputed", sizes) for sizes in _together(layers, len(kept) - 1)]
            copy = self._allocate("communication", (layer.reduced,), _SCATTER_STREAM)
            others_bytes = _size_bytes([*waiting, *reduced, *copy])
            unsharded = self._allocate("communication", divided(layer.scattered - others_bytes, layer.gradients))
            gathered = self._allocate("communication", (layer.gathered,))
            arrived = self._input_gradient(layer, arrived, "gradients" if makes else "working")
            self._free(gathered + again.pop() + kept.pop())
            self._free(reduced)
            reduced = copy
            waiting += self._allocate("communication", (layer.waiting,))
            if makes:
                gradients += self._allocate("gradients", layer.gradients)
            if each.kind == Pass.INPUT:
                left += self._allocate("activations", (layer.left,))
        self._free(arrived + unsharded + reduced + waiting)
        if makes:
            self._gradients[each.chunk] = gradients
        if each.kind == Pass.INPUT:
            self._left[each.chunk].append(left)

    def _input_gradient(self, layer: LayerTensors, arrived: list[Tensor], product_holder: str) -> list[Tensor]:
        """The gradient of a layer's input, from that of its output. Each operator allocates what it writes; the operator with
        the most also a gradient of weights."""
        most = max(layer.working)
        for working in layer.working:
            written = self._allocate("working", _parts(working - _size_bytes(arrived), layer.largest))
            if working == most:
                self._free(self._allocate(product_holder, (layer.product,)))
            if written:
                self._free(arrived)
                arrived = written
        if _size_bytes(arrived) != layer.entry:
            self._free(arrived)
            arrived = self._allocate("working", (layer.entry,))
        return arrived

    def _weights(self, each: RankPass) -> None:
        """Frees what was left for the gradients of weights."""
        self._now = StepMoment("weight gradients", each.chunk, each.microbatch, "")
        self._free(self._left[each.chunk].popleft())

    def _optimize(self) -> None:
        """The optimizer allocates its states in the first step. Gradients that backward passes make are freed."""
        self._now = _OPTIMIZER
        temporary = self._allocate("gradients", self._rank.copies) + self._allocate("working", (self._rank.working,))
        if not self._has_states:
            self._allocate("optimizer_states", self._rank.states)
            self._has_states = True
        self._free(temporary)
        for gradients in self._gradients.values():
            self._free(gradients)
        self._gradients.clear()

    def _through(self, layers: Sequence[LayerTensors], phase: str, each: RankPass) -> Iterator[LayerTensors]:
        """The layers in the order of a pass, each of which becomes the present moment."""
        for layer in layers if phase == "forward" else reversed(layers):
            self._now = StepMoment(phase, each.chunk, each.microbatch, layer.name)
            yield layer

    def _allocate(self, holder: str, sizes: Iterable[int], stream: int = 0) -> list[Tensor]:
        """Allocates tensors; those without elements need no memory."""
        allocator = self._allocator
        tensors = []
        for size in sizes:
            if size <= 0:
                continue
            peak_bytes = allocator.peak_allocated_bytes
            block = allocator.allocate(size, stream)
            self._bytes[holder] += block.size_bytes
            tensors.append((holder, block))
            if allocator.peak_allocated_bytes > peak_bytes:
                self.holders_bytes, self.moment = self._bytes.copy(), self._now
        return tensors

    def _free(self, tensors: Iterable[Tensor]) -> None:
        for holder, block in tensors:
            self._bytes[holder] -= block.size_bytes
            self._allocator.free(block)


def _size_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(block.size_bytes for _, block in tensors)


def _parts(size_bytes: int, largest_bytes: int) -> Iterator[int]:
    """Sizes of tensors with a total, none of which is larger than another size, unless that is zero."""
    while 0 < largest_bytes < size_bytes:
        yield largest_bytes
        size_bytes -= largest_bytes
    yield size_bytes


def _together(layers: Sequence[LayerTensors], last: int) -> Iterator[tuple[int, ...]]:
    """Recomputed tensors of the layers that are recomputed together with the layer `last`, first layer first."""
    first = last
    while layers[first].with_previous:
        first -= 1
    yield from (layer.recomputed for layer in layers[first : last + 1])
