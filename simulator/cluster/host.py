"""Hosts: what a node offers to states and activations that are moved out of its devices, given or assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field

from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster

# Bytes per parameter that Adam reads and writes with 32 bits.
ADAM_BYTES: Final = 28.0
# Rates of pinned memory in one direction over x16 links, as NVIDIA's bandwidthTest reports them (recalled): PCIe 3 12.5 GB/s,
# PCIe 4 25 GB/s, PCIe 5 50 GB/s; and two thirds of 450 GB/s over NVLink-C2C of Grace, a round assumption.
_PCIE_3, _PCIE_4, _PCIE_5, _C2C = 12.5e9, 25e9, 50e9, 300e9
_GENERATIONS: Final = {"kepler": _PCIE_3, "pascal": _PCIE_3, "volta": _PCIE_3, "turing": _PCIE_3, "hopper": _PCIE_5}
_GENERATIONS.update({"blackwell": _PCIE_5, "blackwell-rtx": _PCIE_5, "cdna": _PCIE_5})
_WITH_GRACE: Final = ("GH200", "GB200", "GB300")
# Assumption where a cluster states no memory bandwidth of its hosts: less than any server of two processors since 2017 has.
_MEMORY_BPS: Final = 100e9
# DeepSpeed's Adam on hosts updates 10 billion parameters in 2.57 s (ZeRO-Offload, arXiv 2101.06840, table 4, recalled), on two
# processors with 6 channels of DDR4-2666 each, of 256 GB/s in total.
_ADAM_SHARE: Final = 0.43


class Drives(Spec):
    """All NVMe drives of a node."""

    read_Bps: PositiveBytesPerSecond = Field(alias="read")
    write_Bps: PositiveBytesPerSecond = Field(alias="write")
    capacity_bytes: Bytes | None = Field(None, alias="capacity", description="not checked if absent")


class NodeHost(Spec):
    """A node's memory and processors, for what `training.offload` moves there; what is absent is assumed."""

    memory_bytes: Bytes | None = Field(
        None, alias="memory", description="that processes can allocate; whether it suffices is not checked if absent"
    )
    link_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="link",
        description="rate between a device and its host in each direction, of pinned memory; if absent by the device: "
        "PCIe 3 to 5, or NVLink-C2C",
    )  # fmt: skip
    devices_per_link: Count = Field(1, description="devices behind one switch, which share that rate")
    adam_rate: float | None = Field(
        None, gt=0, le=1e15,
        description="parameters per second that its processors update with Adam in 32 bits; from memory_bandwidth if absent",
    )  # fmt: skip
    nvme: Drives | None = Field(None, description="drives, for offload_to: nvme")

    def updated_per_s(self, moved_bytes: float, stored_bytes: float = 0.0) -> float:
        """Parameters per second of an optimizer that reads and writes `moved_bytes` of memory for each, and `stored_bytes` of
        drives at the same time."""
        rates = [(self.adam_rate or 0.0) * ADAM_BYTES / moved_bytes]
        if stored_bytes and self.nvme is not None:
            rates += [self.nvme.read_Bps / stored_bytes, self.nvme.write_Bps / stored_bytes]
        return min(rates)


def required_host(cluster: Cluster) -> NodeHost:
    """The host of a cluster of `with_host`."""
    assert cluster.node.host is not None
    return cluster.node.host


def with_host(cluster: Cluster) -> Cluster:
    """The cluster with rates of its hosts, those that are assumed included, which count as not given."""
    node, kernels = cluster.node, cluster.device.kernels
    own = node.host or NodeHost()
    link_Bps = _GENERATIONS.get(kernels.generation if kernels else "", _PCIE_4)
    if cluster.device.name.startswith(_WITH_GRACE):
        link_Bps = _C2C
    if node.link is not None:
        link_Bps = min(link_Bps, node.link.bandwidth_Bps)
    memory_Bps = node.memory_bandwidth_Bps or _MEMORY_BPS
    rates = {"link_Bps": own.link_Bps or link_Bps, "adam_rate": own.adam_rate or _ADAM_SHARE * memory_Bps / ADAM_BYTES}
    filled = {"host": own.defaulted(rates), "memory_bandwidth_Bps": memory_Bps}
    return cluster.defaulted({"node": node.defaulted(filled)})


def assumptions(cluster: Cluster) -> str:
    """The rates of hosts that were assumed, and how to give them; empty if all are given. cluster: of `with_host`."""
    node, host, found = cluster.node, required_host(cluster), list[str]()
    if "link_Bps" not in host.model_fields_set:
        found.append(f"{(host.link_Bps or 0.0) / 1e9:.3g} GB/s between a device and its host (cluster.node.host.link)")
    if "adam_rate" not in host.model_fields_set:
        given = "" if "memory_bandwidth_Bps" in node.model_fields_set else " and cluster.node.memory_bandwidth"
        rate = (host.adam_rate or 0.0) / 1e9
        found.append(f"Adam of {rate:.3g} billion parameters/s on a host (cluster.node.host.adam_rate{given})")
    remedy = "give them, or measure them by 'scaleproof calibrate', to narrow the interval"
    return f"offloading: assumed are {' and '.join(found)}; {remedy}" if found else ""
