"""Links, nodes, and which of their resources a message uses."""

from __future__ import annotations

from pydantic import Field, field_validator

from simulator.spec import Count, Spec
from simulator.units import BytesPerSecond, Seconds


class Link(Spec):
    """A full-duplex link: each direction carries `bandwidth`; a message takes `latency` plus size over its share."""

    bandwidth_Bps: BytesPerSecond = Field(alias="bandwidth")
    latency_s: Seconds = Field(alias="latency")
    cores_busy: float = Field(
        0.0, ge=0, description="host cores kept busy while one message moves at full bandwidth (0 where hardware moves it)"
    )

    @field_validator("bandwidth_Bps")
    @classmethod
    def _positive(cls, bandwidth_Bps: float) -> float:
        if bandwidth_Bps <= 0:
            raise ValueError("the bandwidth is zero; give a positive one such as '25 Gbit/s'")
        return bandwidth_Bps


class Node(Spec):
    """One machine.

    devices: how many ranks compute on it without sharing (GPUs), or how many processes it hosts (CPU nodes).
    link: from one device to the others inside the node (NVLink, PCIe, or the loopback interface).
    cores: given where ranks compute on the host's cores: how many cores' worth of work all of them together get done.
    """

    devices: Count = 1
    cards: Count = Field(1, description="network cards; one message moves over one of them")
    link: Link | None = Field(None, description="needed when there is more than one device")
    cores: float | None = Field(None, gt=0)
    memory_bandwidth_Bps: BytesPerSecond | None = Field(
        None, alias="memory_bandwidth", description="of the host, where parameter servers work; the device's if absent"
    )
