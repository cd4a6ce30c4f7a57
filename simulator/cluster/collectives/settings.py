"""What is known of a cluster's collectives beyond its links: the library, what was measured, what NCCL needs."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.algorithms import Op
from scaleproof.simulator.cluster.collectives.nccl import Nccl
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds

Library = Literal["nccl", "gloo", "fastest"]


class MeasuredCollective(Spec):
    """A collective over `ranks` ranks on `nodes` nodes takes latency + size / bandwidth, keeping `cores_busy` cores busy.

    bandwidth: of the collective's size (for all_reduce and the like the whole buffer), not of a link. from: the smallest size
    that it holds for. Libraries change protocols with the size: several entries for a group make a curve in pieces.
    """

    op: Op = "all_reduce"
    ranks: int = Field(ge=2)
    nodes: int = Field(1, ge=1)
    from_bytes: Bytes = Field(0.0, alias="from")
    latency_s: Seconds = Field(alias="latency")
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")
    cores_busy: float = Field(0.0, ge=0)

    def seconds(self, size_bytes: float) -> float:
        """What one of that size takes."""
        return self.latency_s + size_bytes / self.bandwidth_Bps


class CollectiveSettings(Spec):
    """Measured collectives, and facts for NCCL's model (without them, the device's name tells).

    library: who chooses the algorithm. nccl (on AMD's GPUs RCCL) and gloo choose as they do; fastest: the best of those that
    need nothing but links. Absent: nccl on the GPUs it runs on, gloo where ranks compute on the host's cores, else fastest.
    measured: by operation and group. A group of another size goes by the links, corrected as the nearest measured one of the
    same operation needs it.
    """

    library: Library | None = None
    measured: tuple[MeasuredCollective, ...] = ()
    nccl: Nccl | None = None

    def exactly(self, op: Op, ranks: int, nodes: int, size_bytes: float = math.inf) -> MeasuredCollective | None:
        """The measurement of such a group, if there is one: of several the one from the largest size that does not exceed this
        one, for sizes smaller than any the first."""
        pieces = [m for m in self.measured if (m.op, m.ranks, m.nodes) == (op, ranks, nodes)]
        reached = [m for m in pieces if m.from_bytes <= size_bytes]
        if reached:
            return max(reached, key=lambda m: m.from_bytes)
        return min(pieces, key=lambda m: m.from_bytes, default=None)

    def nearest(self, op: Op, ranks: int, nodes: int, size_bytes: float = math.inf) -> MeasuredCollective | None:
        """The same of the group whose size is nearest by ratio, of those that stay on one node, or that do not."""
        alike = [m for m in self.measured if m.op == op and (m.nodes > 1) == (nodes > 1)]
        group = min(alike, key=lambda m: abs(math.log(m.ranks / ranks)), default=None)
        return None if group is None else self.exactly(op, group.ranks, group.nodes, size_bytes)
