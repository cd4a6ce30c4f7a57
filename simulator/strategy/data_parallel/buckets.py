"""Gradient buckets: gradients in the order in which backward passes complete them, grouped into buckets that are summed
together."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from scaleproof.simulator.model.layers import Layer


class Gradients:
    """Gradients of layers in the order in which backward passes produce them, the reverse of the layers.

    tensors: elements of each tensor. filled: elements of all tensors before each, and of all.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.tensors = tuple(tensor for layer in reversed(layers) for tensor in reversed(layer.tensors))
        self.filled = list(itertools.accumulate(self.tensors, initial=0))
        self._owners = [number for number in reversed(range(len(layers))) for _ in layers[number].tensors]
        # where the tensors of each layer end, and those of the previous layer begin
        self._ends = list(itertools.accumulate((len(layer.tensors) for layer in reversed(layers)), initial=0))[::-1]

    def bounds(self, stage: range) -> list[int]:
        """Positions where the tensors of consecutive layers begin and end."""
        return [self._ends[stage.stop], self._ends[stage.start]]

    def buckets(self, stage: range, element_bytes: int, first_bytes: float, bucket_bytes: float) -> tuple[list[int], list[int]]:
        """Buckets of consecutive layers, as DistributedDataParallel fills them: the positions where each begins and the last
        ends, and for each bucket the layer that completes it.

        A bucket closes when it reaches its size limit; the first has a limit of its own, so that communication starts early.
        """
        cumulative, (begin, end) = self.filled, self.bounds(stage)
        limit, next_limit = (math.ceil(min(size / element_bytes, cumulative[-1] + 1)) for size in (first_bytes, bucket_bytes))
        bounds, layers = [begin], list[int]()
        while cumulative[begin] < cumulative[end]:
            begin = bisect.bisect_left(cumulative, cumulative[begin] + limit, begin + 1, end + 1)
            if begin > end:
                return [*bounds, end], [*layers, stage.start]
            bounds.append(begin)
            layers.append(self._owners[begin - 1])
            limit = next_limit
        return bounds, layers
