"""Slowdown of computation and communication that overlap.

All ranks call the probe, and each gets all its points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.futures import Future

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import DeviceTimer, Samples, Step, repeat, timed
from scaleproof.validator.probe.peers import GroupPeers, named
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import groups_in_turn
from scaleproof.validator.train.models.models import DTYPES

# The background work lasts this many times as long as the timed work, so that it does not end first.
_OUTLASTS: Final = 3.0
_MOST_AT_ONCE: Final = 200


def overlap(
    groups: Sequence[Sequence[int]], size_bytes: int, side: int, precision: str, budget_s: float
) -> list[dict[str, Any]]:
    """Points of matrix products overlapped with all-reduces of 32-bit floats ("compute", in flops) and of an all-reduce
    overlapped with products ("communication", in bytes): seconds while overlapped, and the medians `alone_s` and `together_s`.

    groups: ranks that reduce together; all ranks of a group compute and communicate concurrently. side, precision: of products.
    """

    def probe(peers: GroupPeers, budget_s: float) -> list[Point]:
        return _Probe(peers, size_bytes, side, precision, budget_s).points()

    # the amount of computation follows from measured times, and would differ between rounds
    return groups_in_turn(groups, probe, budget_s, rounds=1)


class _Probe:
    """Matrix products and all-reduces of one group: each alone and each overlapped with the other, a quarter of the time
    each."""

    def __init__(self, peers: GroupPeers, size_bytes: int, side: int, precision: str, budget_s: float) -> None:
        device = here().device
        self.peers, self.each_s = peers, budget_s / 4
        self.clock = DeviceTimer(device)
        self.left, self.right = (torch.randn(side, side, device=device, dtype=DTYPES[precision]) for _ in range(2))
        self.buffer = torch.zeros(size_bytes // 4, device=device)

    def points(self) -> list[Point]:
        once_s = statistics.median(self.repeated(timed(partial(self.multiply, 1))).seconds)
        sum_alone = self.repeated(timed(self.sum))
        sum_s = statistics.median(sum_alone.seconds)
        # products that last as long as an all-reduce, and products that outlast it
        short, long = (max(1, min(_MOST_AT_ONCE, math.ceil(ratio * sum_s / once_s))) for ratio in (1.0, _OUTLASTS))
        sums = max(1, min(_MOST_AT_ONCE, math.ceil(_OUTLASTS * short * once_s / sum_s)))
        computed_alone = self.repeated(timed(partial(self.multiply, short)))
        return [
            self.point(
                "compute", short * 2.0 * len(self.left) ** 3, "flops", computed_alone, self.compute_overlapped(short, sums)
            ),
            self.point("communication", self.buffer.nbytes, "bytes", sum_alone, self.sum_overlapped(long)),
        ]

    def repeated(self, step: Step) -> Samples:
        return repeat(step, self.each_s, self.peers)

    def multiply(self, times: int) -> None:
        for _ in range(times):
            self.left @ self.right

    def sum(self) -> None:
        dist.all_reduce(self.buffer, group=self.peers.group)

    def begin_sum(self) -> dist.Work:
        work: dist.Work = dist.all_reduce(self.buffer, group=self.peers.group, async_op=True)
        return work

    def compute_overlapped(self, products: int, sums: int) -> Samples:
        """Times of `products` matrix products while `sums` all-reduces are in progress."""

        def repetition() -> float:
            self.clock.wait()
            in_progress = [self.begin_sum() for _ in range(sums)]
            begin = self.clock.mark()
            self.multiply(products)
            end = self.clock.mark()
            for work in in_progress:
                work.wait()
            self.clock.wait()
            return self.clock.seconds(begin, end)

        return self.repeated(repetition)

    def sum_overlapped(self, products: int) -> Samples:
        """Times of an all-reduce while `products` matrix products are computed."""

        def repetition() -> float:
            self.clock.wait()
            begin = self.clock.mark()
            # this thread, or the stream of the products, is busy meanwhile, so a callback marks the end, on a stream of its own
            ended: Future[Any] = self.begin_sum().get_future().then(lambda _: self.clock.mark())
            self.multiply(products)
            end = ended.wait()
            self.clock.wait()
            return self.clock.seconds(begin, end)

        return self.repeated(repetition)

    def point(self, what: str, size: float, unit: str, alone: Samples, overlapped: Samples) -> Point:
        alone_s, together_s = (statistics.median(samples.seconds) for samples in (alone, overlapped))
        where, ranks = named(self.peers.ranks), self.peers.ranks
        return overlapped.point("overlap", what, where, ranks, size, unit, alone_s=alone_s, together_s=together_s)
