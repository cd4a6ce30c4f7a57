"""Buckets: gradients in the order in which backward passes complete them, grouped into buckets that are summed at once."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from scaleproof.simulator.model.layers import Layer


class Gradients:
    """Gradients of layers, in the order in which passes make them: the reverse. tensors: elements of each. filled: of all
    before each, and of all."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.tensors = tuple(tensor for layer in reversed(layers) for tensor in reversed(layer.tensors))
        self.filled = list(itertools.accumulate(self.tensors, initial=0))
        self._owners = [number for number in reversed(range(len(layers))) for _ in layers[number].tensors]
        # where those of each layer end, and those of the layer before begin
        self._ends = list(itertools.accumulate((len(layer.tensors) for layer in reversed(layers)), initial=0))[::-1]

    def bounds(self, stage: range) -> list[int]:
        """Where those of some layers begin and end."""
        return [self._ends[stage.stop], self._ends[stage.start]]

    def buckets(self, stage: range, element_bytes: int, first_bytes: float, bucket_bytes: float) -> tuple[list[int], list[int]]:
        """As DistributedDataParallel fills them with those of some layers: where each begins and where the last ends; and the
        layer that completes each.

        A bucket closes once it holds its limit or more; the first has a limit of its own, so that communication starts early.
        """
        filled, (begin, end) = self.filled, self.bounds(stage)
        limit, each = (math.ceil(min(size / element_bytes, filled[-1] + 1)) for size in (first_bytes, bucket_bytes))
        bounds, layers = [begin], list[int]()
        while filled[begin] < filled[end]:
            begin = bisect.bisect_left(filled, filled[begin] + limit, begin + 1, end + 1)
            if begin > end:
                return [*bounds, end], [*layers, stage.start]
            bounds.append(begin)
            layers.append(self._owners[begin - 1])
            limit = each
        return bounds, layers
