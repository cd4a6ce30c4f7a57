"""Computation and communication at once: how much longer each takes than alone.

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
from scaleproof.validator.probe.adaptive import Samples, Step, repeat, timed
from scaleproof.validator.probe.device_timer import DeviceTimer
from scaleproof.validator.probe.peers import Together, named
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.turns import groups_in_turn

# What goes on beside what is timed takes so much longer, alone, that it lasts until the end.
_OUTLASTS: Final = 3.0
_MOST_AT_ONCE: Final = 200


def overlap(
    groups: Sequence[Sequence[int]], size_bytes: int = 2**22, side: int = 256, budget_s: float = 4.0
) -> list[dict[str, Any]]:
    """Matrix products beside an allreduce of 32-bit floats ("compute", in flops), and an allreduce beside products
    ("communication", in bytes): the seconds of one beside the other, and the medians `alone_s` and `together_s`.

    groups: ranks that sum together; all of one compute and sum at once.
    """

    def probe(peers: Together, budget_s: float) -> list[Point]:
        return _Probe(peers, size_bytes, side, budget_s).points()

    # how much is computed follows from what was measured, and would be another in each round
    return groups_in_turn(groups, probe, budget_s, rounds=1)


class _Probe:
    """Products and sums of one group, each a quarter of the time: alone, and beside the other."""

    def __init__(self, peers: Together, size_bytes: int, side: int, budget_s: float) -> None:
        device = here().device
        self.peers, self.each_s = peers, budget_s / 4
        self.clock = DeviceTimer(device)
        self.left, self.right = (torch.randn(side, side, device=device) for _ in range(2))
        self.buffer = torch.zeros(size_bytes // 4, device=device)

    def points(self) -> list[Point]:
        once_s = statistics.median(self.repeated(timed(partial(self.multiply, 1))).seconds)
        sum_alone = self.repeated(timed(self.sum))
        sum_s = statistics.median(sum_alone.seconds)
        # as long as a sum, and so long that a sum ends first
        short, long = (max(1, min(_MOST_AT_ONCE, math.ceil(ratio * sum_s / once_s))) for ratio in (1.0, _OUTLASTS))
        sums = max(1, min(_MOST_AT_ONCE, math.ceil(_OUTLASTS * short * once_s / sum_s)))
        computed_alone = self.repeated(timed(partial(self.multiply, short)))
        return [
            self.point("compute", short * 2.0 * len(self.left) ** 3, "flops", computed_alone, self.compute_beside(short, sums)),
            self.point("communication", self.buffer.nbytes, "bytes", sum_alone, self.sum_beside(long)),
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

    def compute_beside(self, products: int, sums: int) -> Samples:
        """Products, while so many sums go on."""
        compute = timed(partial(self.multiply, products))

        def repetition() -> float:
            going_on = [self.begin_sum() for _ in range(sums)]
            seconds = compute()
            for work in going_on:
                work.wait()
            return seconds

        return self.repeated(repetition)

    def sum_beside(self, products: int) -> Samples:
        """A sum, while so many products go on."""

        def repetition() -> float:
            self.clock.wait()
            begin = self.clock.mark()
            # whoever computes meanwhile does not see when it ends
            ended: Future[Any] = self.begin_sum().get_future().then(lambda _: self.clock.mark())
            self.multiply(products)
            end = ended.wait()
            self.clock.wait()
            return self.clock.seconds(begin, end)

        return self.repeated(repetition)

    def point(self, what: str, size: float, unit: str, alone: Samples, beside: Samples) -> Point:
        alone_s, together_s = (statistics.median(samples.seconds) for samples in (alone, beside))
        where, ranks = named(self.peers.ranks), self.peers.ranks
        return beside.point("overlap", what, where, ranks, size, unit, alone_s=alone_s, together_s=together_s)
