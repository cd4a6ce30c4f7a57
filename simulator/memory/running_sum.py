"""The running sum of the bytes that passes over a chunk allocate and free: what is live when, and the peak of each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.layers import LayerBytes
from scaleproof.simulator.memory.states import Amount
from scaleproof.simulator.memory.step import Backward, Tensor, forward

Bytes = NDArray[np.float64]


class RunningSum:
    """Live bytes after each allocation, relative to those at the beginning.

    share_of: factor on the bytes of a holder in the sum: a weight, or a vector that has one place for each holder. Bytes may be
    arrays, which represent many chunks, if factors are weights.
    """

    def __init__(self, share_of: Mapping[str, Any]) -> None:
        self._share_of = share_of
        self.live: Any = 0.0 * next(iter(share_of.values()))
        self.timeline = [self.live]

    def allocate(self, holder: str, sizes_bytes: Iterable[Amount], stream: int = 0) -> list[Tensor]:
        """Adds the bytes of tensors."""
        tensors = [Tensor(holder, size_bytes) for size_bytes in sizes_bytes]
        for _, size_bytes, _ in tensors:
            self.live = self.live + self._share_of[holder] * size_bytes
            self.timeline.append(self.live)
        return tensors

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Subtracts the bytes of tensors."""
        for holder, size_bytes, _ in tensors:
            self.live = self.live - self._share_of[holder] * size_bytes

    def visit(self, layer: LayerBytes, allocate: Callable[[], None]) -> None:
        """Visits the first and the second of equal layers, and the last, to which live bytes change by as much at each layer as
        at the second."""
        allocate()
        is_one = layer.count == 1
        if np.all(is_one):
            return
        begin, before = len(self.timeline), self.live
        allocate()
        shift, second = (layer.count - 2) * (self.live - before), self.timeline[begin:]
        self.live = self.live + shift
        self.timeline[begin:] = [*second, *(live + shift for live in second)]
        if np.ndim(layer.count):
            # where there is one layer, there is no second
            self.timeline[begin:] = [np.where(is_one, before, live) for live in self.timeline[begin:]]


class ChunkTimeline(NamedTuple):
    """Running sums of the passes over a chunk.

    passes: of each kind, by its name among the columns of `FullestPasses`: live bytes after each allocation, relative to those
    before the pass. changes: what a microbatch adds to the live bytes: "kept" by its forward pass, "left" after a backward pass
    without gradients of weights, "gradients" by the first backward pass.
    """

    passes: Mapping[str, Sequence[Any]]
    changes: Mapping[str, Any]

    @classmethod
    def of(cls, layers: Sequence[LayerBytes], share_of: Mapping[str, Any], makes: bool, splits: bool) -> Self:
        """The running sums of the passes over some layers. share_of: see `RunningSum`. makes: whether the first backward pass
        allocates gradients. splits: whether gradients of weights are computed in separate passes."""
        ahead = RunningSum(share_of)
        kept = forward(ahead, layers)

        def backward(makes: bool = False, is_input: bool = False) -> RunningSum:
            back = RunningSum(share_of)
            Backward(back, makes, is_input).run(layers, kept)
            return back

        adding = backward()
        passes, changes = {"forward": ahead.timeline, "adding": adding.timeline}, {"kept": ahead.live}
        if splits:
            other = backward(is_input=True)
            passes["input"], changes["left"] = other.timeline, other.live + ahead.live
        else:
            other = backward(makes=True) if makes else adding
            passes["making"], changes["gradients"] = other.timeline, other.live + ahead.live
        return cls(passes, changes)
