"""What is known of a cluster's collectives beyond its links: what was measured, what NCCL needs; and the plain ring."""

from __future__ import annotations

from pydantic import Field

from simulator.cluster.nccl import Nccl
from simulator.cluster.traffic import Group, ring
from simulator.spec import Spec
from simulator.units import BytesPerSecond, Seconds


class MeasuredCollective(Spec):
    """A collective over `ranks` ranks of one node takes latency + size / bandwidth, keeping `cores_busy` cores busy."""

    ranks: int = Field(ge=2)
    latency_s: Seconds = Field(alias="latency")
    bandwidth_Bps: BytesPerSecond = Field(alias="bandwidth")
    cores_busy: float = Field(0.0, ge=0)


class Collectives(Spec):
    """Measured collectives by group size, and facts for NCCL's model (without them, the device's name tells)."""

    allreduce: tuple[MeasuredCollective, ...] = ()
    nccl: Nccl | None = None

    def measured_allreduce(self, ranks: int) -> MeasuredCollective | None:
        """The measurement for exactly `ranks` ranks, if there is one."""
        return next((m for m in self.allreduce if m.ranks == ranks), None)


def ring_allreduce_bytes(ranks: int, size_bytes: float) -> float:
    """Bytes each rank sends, and receives, in a ring allreduce: 2(n−1)/n · S (Patarasuk & Yuan 2009)."""
    return ring("all_reduce", Group(ranks, ranks), size_bytes).port_bytes


def ring_allreduce_steps(ranks: int) -> int:
    """Messages that follow one another in a ring allreduce: n−1 to reduce and scatter, n−1 to gather."""
    return ring("all_reduce", Group(ranks, ranks), 0.0).inside_steps
