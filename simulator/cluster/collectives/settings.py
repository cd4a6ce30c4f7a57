"""Settings of a cluster's collectives: the library, measured collectives, and parameters of NCCL's model."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.collectives.nccl.constants import Adjust
from scaleproof.simulator.cluster.collectives.nccl.facts import Nccl
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds

Library = Literal["nccl", "gloo", "fastest"]


class MeasuredCollective(Spec):
    """Duration of a collective over `ranks` ranks on `nodes` nodes, latency + size / bandwidth, which keeps `cores_busy` cores
    busy.

    bandwidth: the collective's size (for all_reduce and similar ones the whole buffer) per second, not that of a link. from:
    the smallest size that the entry is valid for. Libraries change protocols with the size: several entries for a group are a
    piecewise linear curve.
    """

    op: Op = "all_reduce"
    ranks: int = Field(ge=2)
    nodes: int = Field(1, ge=1)
    from_bytes: Bytes = Field(0.0, alias="from")
    latency_s: Seconds = Field(alias="latency")
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")
    cores_busy: float = Field(0.0, ge=0)

    def seconds(self, size_bytes: float) -> float:
        """Seconds of a collective of this size."""
        return self.latency_s + size_bytes / self.bandwidth_Bps


class CollectiveSettings(Spec):
    """The library, measured collectives and parameters of NCCL's model, which otherwise follow from the device's name.

    library: chooses the algorithm. nccl (RCCL on AMD's GPUs) and gloo choose like these libraries; fastest: the fastest
    algorithm that needs only links. If absent: nccl on the GPUs that it runs on, gloo if ranks compute on the host's cores,
    else fastest. measured: by operation and group. Groups of other sizes use the links' model with the correction of the
    nearest measured group of the same operation. adjust: factors on the shipped constants of NCCL's timing.
    """

    library: Library | None = None
    measured: tuple[MeasuredCollective, ...] = ()
    nccl: Nccl | None = None
    adjust: Adjust = Adjust()

    def exactly(self, op: Op, ranks: int, nodes: int, size_bytes: float = math.inf) -> MeasuredCollective | None:
        """The measured entry that is valid for this group and size (the first one for smaller sizes); None if not measured."""
        entries = [m for m in self.measured if (m.op, m.ranks, m.nodes) == (op, ranks, nodes)]
        valid = [m for m in entries if m.from_bytes <= size_bytes]
        if valid:
            return max(valid, key=lambda m: m.from_bytes)
        return min(entries, key=lambda m: m.from_bytes, default=None)

    def nearest(self, op: Op, ranks: int, nodes: int, size_bytes: float = math.inf) -> MeasuredCollective | None:
        """The measured entry of the group whose size is nearest by ratio, among groups that also are on one node, or on
        several; None if not measured."""
        comparable = [m for m in self.measured if m.op == op and (m.nodes > 1) == (nodes > 1)]
        group = min(comparable, key=lambda m: abs(math.log(m.ranks / ranks)), default=None)
        return None if group is None else self.exactly(op, group.ranks, group.nodes, size_bytes)
