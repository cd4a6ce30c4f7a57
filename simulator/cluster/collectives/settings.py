"""Settings of a cluster's collectives: the library, measured collectives, and parameters of NCCL's model."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Final, Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds

Library = Literal["nccl", "gloo", "fastest"]
Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna"]
Protocol = Literal["ll", "ll128", "simple"]
Buffers = Literal["plain", "registered", "symmetric"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("ll", "ll128", "simple")


# Channels on one node; between nodes two for each card that the node's ranks use, the usual result of NCCL's search.
# Over PCIe NCCL's search finds one of 12 or 24 GB/s, or two where they have 25 GB/s or more, and doubles them (search.cc,
# ncclTopoDupChannels; connect.cc, ncclTopoPostset).
# RCCL: four for each of the 14 rings of eight fully joined MI300X, 16 rings for eight cards (rome_models.cc, 79 and 81).
_CHANNELS: Final = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32, "cdna": 56}
_PCIE_CHANNELS: Final = {"volta": 2, "ampere": 2, "hopper": 4, "blackwell": 4, "cdna": 2}


class Nccl(Spec):
    """Parameters of NCCL's model for a cluster, in addition to the speeds of its links; of RCCL's with the generation cdna."""

    generation: Generation = Field(
        description="of the GPUs; a cluster may leave out what the device's name says. Older ones than Volta count as Volta, "
        "as in NCCL; cdna: AMD Instinct from MI200 on"
    )
    interconnect: Literal["nvlink", "pcie"] = Field("nvlink", description="nvlink: also AMD's Infinity Fabric")
    nvls: bool = Field(True, description="use NVLink SHARP where the generation has it")
    ll128: bool = Field(True, description="whether the network keeps 128-byte stores in order, as the LL128 protocol needs")
    network_latency_s: Seconds = Field(
        0.0, alias="network_latency", description="latency that the network plugin states to NCCL's tuner, not the one it has"
    )
    version: str = Field("2.27", pattern=r"^2\.\d+(\.\d+)?$", description="of NCCL, which decides on the algorithms it has")
    buffers: Buffers = Field(
        "plain",
        description="of collectives; registered: with NCCL, so that NVLS need not copy them; symmetric: in windows at equal "
        "offsets on all ranks (NCCL_WIN_COLL_SYMMETRIC), which symmetric kernels need",
    )

    def is_at_least(self, major: int, minor: int) -> bool:
        """Whether the version of NCCL is `major.minor` or later."""
        return tuple(map(int, self.version.split(".")[:2])) >= (major, minor)

    @property
    def registers(self) -> bool:
        """Whether NVLS works on the buffers of collectives themselves, as it can from NCCL 2.19 on."""
        return self.buffers != "plain" and self.is_at_least(2, 19)

    def channels(self, nodes: int, cards: int) -> int:
        """Number of channels over `nodes` nodes that use `cards` network cards each."""
        return _CHANNELS[self.generation] if nodes == 1 else min(_CHANNELS[self.generation], 2 * cards)

    @property
    def channels_share(self) -> float:
        """Number of channels that a node's links have over that of NVLink."""
        return _PCIE_CHANNELS[self.generation] / _CHANNELS[self.generation] if self.interconnect == "pcie" else 1.0

    def has_nvls_on(self, group: Group) -> bool:
        """Whether NVSwitch reduces and multicasts for a group."""
        has_switches = self.generation in ("hopper", "blackwell") and self.interconnect == "nvlink"
        return self.nvls and has_switches and group.per_node > 2


class Adjust(Spec):
    """Factors of a cluster on the shipped constants of its collectives' timing, as `import nccl-tests` derives them from logs.

    launch, latency_inside, latency_between: on times, so that 1.2 is a fifth longer. rate_inside, rate_between: on rates, so
    that 0.9 is a tenth slower.
    """

    launch: float = Field(1.0, gt=0, le=1000)
    latency_inside: float = Field(1.0, gt=0, le=1000)
    latency_between: float = Field(1.0, gt=0, le=1000)
    rate_inside: float = Field(1.0, gt=0, le=1000)
    rate_between: float = Field(1.0, gt=0, le=1000)


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


_GENERATIONS: Final[dict[str, Generation]] = {
    r"G?B[123]00|GB10\b|RTX[- ](?:PRO[- ]\d000|50\d0)": "blackwell",
    r"G?H[128]00|H20\b": "hopper",
    r"A[18]00|A[34]0\b|A10G?\b|L40?S?\b|(?:RTX-?)?A[456]000|RTX(?![- ]20)": "ampere",
    r"V100|P100|K80|M[46]0\b|P40\b|T4\b|RTX[- ]20": "volta",
    # AMD Instinct: MI210, MI250X, MI300A, MI300X, MI325X, MI355X and the like
    r"MI[2-9]\d\d[AX]?\b": "cdna",
}
# GPUs whose links inside a node are PCIe's.
_ON_PCIE: Final = r"PCIe|GB10\b|NVL\b|K80|M[46]0\b|P40\b|T4\b|L40?S?\b|A[34]0\b|A10G?\b|RTX|A[456]000|MI210"


@functools.lru_cache(maxsize=256)
def facts_of(device: str) -> Nccl | None:
    """Parameters of NCCL's or RCCL's model for a GPU by its name, such as 'H100-80GB-SXM'; None if neither runs on it."""
    matches = [generation for pattern, generation in _GENERATIONS.items() if re.search(rf"\b(?:{pattern})", device)]
    is_on_pcie = re.search(_ON_PCIE, device, re.IGNORECASE)
    return Nccl(generation=matches[0], interconnect="pcie" if is_on_pcie else "nvlink") if matches else None


# GPUs that do not reach each other's memory over PCIe, by the driver.
_WITHOUT_PEERS: Final = r"RTX[- ](?:20[678]0|30[6789]0|40[6789]0|50[6789]0)\b"


def has_peers(device: str) -> bool:
    """Whether devices of this name reach each other's memory over PCIe."""
    return re.search(_WITHOUT_PEERS, device) is None


def without_peers(cluster: Any) -> Any:
    """YAML of a cluster of GeForce cards, whose link inside a node is without peer-to-peer access unless it states it."""
    node, device = (cluster.get(part) if isinstance(cluster, dict) else None for part in ("node", "device"))
    link = node.get("link") if isinstance(node, dict) else None
    name = str(device.get("name") if isinstance(device, dict) else getattr(device, "name", ""))
    if not isinstance(node, dict) or not isinstance(link, dict | str) or has_peers(name):
        return cluster
    own = {"base": link} if isinstance(link, str) else link
    return cluster | {"node": node | {"link": {"peer_to_peer": False, **own}}}


def with_generation(cluster: Any) -> Any:
    """YAML of a cluster in which `collectives.nccl` without a generation of GPUs has that of the device's name."""
    collectives, device = (cluster.get(part) if isinstance(cluster, dict) else None for part in ("collectives", "device"))
    given = collectives.get("nccl") if isinstance(collectives, dict) else None
    if not isinstance(collectives, dict) or not isinstance(given, dict) or "generation" in given:
        return cluster
    name = str(device.get("name") if isinstance(device, dict) else getattr(device, "name", ""))
    facts = facts_of(name)
    if facts is None:
        return cluster
    known = {"generation": facts.generation, "interconnect": facts.interconnect}
    return cluster | {"collectives": collectives | {"nccl": known | given}}
