"""What is known of a cluster's collectives beyond its links: the library, what was measured, what NCCL needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.cluster.nccl import Nccl
from simulator.spec import Spec
from simulator.units import BytesPerSecond, Seconds

Library = Literal["nccl", "gloo", "fastest"]


class MeasuredCollective(Spec):
    """A collective over `ranks` ranks of one node takes latency + size / bandwidth, keeping `cores_busy` cores busy."""

    ranks: int = Field(ge=2)
    latency_s: Seconds = Field(alias="latency")
    bandwidth_Bps: BytesPerSecond = Field(alias="bandwidth")
    cores_busy: float = Field(0.0, ge=0)


class Collectives(Spec):
    """Measured collectives by group size, and facts for NCCL's model (without them, the device's name tells).

    library: who chooses the algorithm. nccl and gloo choose as they do; fastest: the best of those that need nothing but
    links. Absent: nccl on the GPUs it runs on, gloo where ranks compute on the host's cores, else fastest.
    """

    library: Library | None = None
    allreduce: tuple[MeasuredCollective, ...] = ()
    nccl: Nccl | None = None

    def measured_allreduce(self, ranks: int) -> MeasuredCollective | None:
        """The measurement for exactly `ranks` ranks, if there is one."""
        return next((m for m in self.allreduce if m.ranks == ranks), None)
