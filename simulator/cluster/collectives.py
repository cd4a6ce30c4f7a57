"""What a collective costs: the ring algorithm, or what was measured for that many ranks."""

from __future__ import annotations

from pydantic import Field

from simulator.spec import Spec
from simulator.units import BytesPerSecond, Seconds


class MeasuredCollective(Spec):
    """A collective over `ranks` ranks of one node takes latency + size / bandwidth, keeping `cores_busy` cores busy."""

    ranks: int = Field(ge=2)
    latency_s: Seconds = Field(alias="latency")
    bandwidth_Bps: BytesPerSecond = Field(alias="bandwidth")
    cores_busy: float = Field(0.0, ge=0)


class Collectives(Spec):
    """Measured collectives by group size."""

    allreduce: tuple[MeasuredCollective, ...] = ()

    def measured_allreduce(self, ranks: int) -> MeasuredCollective | None:
        """The measurement for exactly `ranks` ranks, if there is one."""
        return next((m for m in self.allreduce if m.ranks == ranks), None)


def ring_allreduce_bytes(ranks: int, size_bytes: float) -> float:
    """Bytes each rank sends, and receives, in a ring allreduce: 2(n−1)/n · S (Patarasuk & Yuan 2009)."""
    return 2 * (ranks - 1) / ranks * size_bytes


def ring_allreduce_steps(ranks: int) -> int:
    """Messages that follow one another in a ring allreduce: n−1 to reduce and scatter, n−1 to gather."""
    return 2 * (ranks - 1)
