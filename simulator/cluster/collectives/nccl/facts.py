"""Facts of a cluster that NCCL's tuner and its timing depend on: the GPUs' generation, links and channels."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import FurtherSteps, Traffic, traffic
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds

Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna"]
Protocol = Literal["ll", "ll128", "simple"]
Buffers = Literal["plain", "registered", "symmetric"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("ll", "ll128", "simple")


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

    def has_nvls_on(self, group: Group) -> bool:
        """Whether NVSwitch reduces and multicasts for a group."""
        has_switches = self.generation in ("hopper", "blackwell") and self.interconnect == "nvlink"
        return self.nvls and has_switches and group.per_node > 2


@dataclass(frozen=True)
class GroupLinks:
    """The links that a group uses, at their nominal bandwidth."""

    group: Group
    node: Node
    network: Link | None

    @property
    def cards(self) -> int:
        """Number of network cards in use per node."""
        return self.node.cards_used

    @property
    def heads(self) -> int:
        """Number of ranks of a node that have a network card of their own."""
        return min(self.cards, self.group.per_node)

    @property
    def reduces(self) -> bool:
        """Whether the network's switches reduce for the group."""
        group, network = self.group, self.network
        return network is not None and network.in_network_reduction and group.nodes > 1 and group.is_even

    def traffic(self, algorithm: str, op: Op) -> Traffic:
        """Traffic of an algorithm on these links."""
        return traffic(algorithm, op, self.group, self.node, self.network, rotate=True)

    def latency_s(self, traffic: Traffic, inside_known_s: float = 0.0, between_known_s: float = 0.0) -> float:
        """Seconds of latency of the traffic's consecutive messages on the links alone.

        inside_known_s, between_known_s: latency of a message that is counted elsewhere; only what a message has in addition
        counts.
        """
        inside_s = _latency_s(self.node.link, traffic.inside_steps, traffic.inside_further, inside_known_s)
        return inside_s + _latency_s(self.network, traffic.between_steps, traffic.between_further, between_known_s)

    def rounds_latency_s(self, rounds: Sequence[Traffic]) -> float:
        """Seconds of latency of consecutive rounds, each of whose steps waits for its slowest message."""
        seconds = 0.0
        for part in rounds:
            inside_s = _farthest_s(self.node.link, part.inside_further) if part.inside_messages else 0.0
            between_s = _farthest_s(self.network, part.between_further) if part.between_messages else 0.0
            seconds += (part.inside_steps + part.between_steps) * max(inside_s, between_s)
        return seconds

    def hosts_s(self, traffic: Traffic) -> float:
        """Busy seconds of the host, or of the device inside a node, that handles the most of the traffic's messages."""
        inside_s, between_s = (link.overhead_s if link else 0.0 for link in (self.node.link, self.network))
        return max(traffic.inside_messages * inside_s, traffic.between_messages * between_s)


def _latency_s(link: Link | None, steps: int, further: Sequence[FurtherSteps], known_s: float) -> float:
    """Seconds of latency of consecutive messages on a link, each without the part that is counted elsewhere."""
    if link is None:
        return 0.0
    nearest = steps - sum(part.steps for part in further)
    return sum(
        (count * max(0.0, link.latency_s + extra_s - known_s) for extra_s, count in further),
        start=nearest * max(0.0, link.latency_s - known_s),
    )


def _farthest_s(link: Link | None, further: Sequence[FurtherSteps]) -> float:
    """Latency in seconds of the farthest message on a link."""
    return link.latency_s + max((part.extra_s for part in further), default=0.0) if link else 0.0


# Channels on one node; between nodes two for each card that the node's ranks use, the usual result of NCCL's search.
# RCCL: four for each of the 14 rings of eight fully joined MI300X, 16 rings for eight cards (rome_models.cc, 79 and 81).
_CHANNELS: Final = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32, "cdna": 56}
_GENERATIONS: Final[dict[str, Generation]] = {
    r"G?B[123]00|RTX[- ]PRO[- ]\d000": "blackwell",
    r"G?H[128]00|H20\b": "hopper",
    r"A[18]00|A[34]0\b|A10G?\b|L40?S?\b|(?:RTX-?)?A[456]000|RTX": "ampere",
    r"V100|P100|K80|M60|T4\b": "volta",
}


# AMD Instinct: MI210, MI250X, MI300X, MI325X, MI355X and the like.
_INSTINCT: Final = re.compile(r"\bMI[2-9]\d\d[AX]?\b")


@functools.lru_cache(maxsize=256)
def rccl_facts_of(device: str) -> Nccl | None:
    """Parameters of RCCL's model for an AMD GPU by its name, such as 'MI300X-192GB-OAM'; None if it is no AMD Instinct."""
    if not _INSTINCT.search(device):
        return None
    return Nccl(generation="cdna", interconnect="pcie" if re.search("PCIe|MI210", device, re.IGNORECASE) else "nvlink")


@functools.lru_cache(maxsize=256)
def facts_of(device: str) -> Nccl | None:
    """Parameters of NCCL's model for a GPU by its name, such as 'H100-80GB-SXM'; None if NCCL does not run on it."""
    matches = [generation for pattern, generation in _GENERATIONS.items() if re.search(rf"\b(?:{pattern})", device)]
    has_nvlink = not re.search(r"PCIe|K80|M60|T4\b|L40?S?\b|A[34]0\b|A10G?\b|RTX|A[456]000", device, re.IGNORECASE)
    return Nccl(generation=matches[0], interconnect="nvlink" if has_nvlink else "pcie") if matches else None


def with_generation(cluster: Any) -> Any:
    """YAML of a cluster in which `collectives.nccl` without a generation of GPUs has that of the device's name."""
    collectives, device = (cluster.get(part) if isinstance(cluster, dict) else None for part in ("collectives", "device"))
    given = collectives.get("nccl") if isinstance(collectives, dict) else None
    if not isinstance(collectives, dict) or not isinstance(given, dict) or "generation" in given:
        return cluster
    name = str(device.get("name") if isinstance(device, dict) else getattr(device, "name", ""))
    facts = facts_of(name) or rccl_facts_of(name)
    if facts is None:
        return cluster
    known = {"generation": facts.generation, "interconnect": facts.interconnect}
    return cluster | {"collectives": collectives | {"nccl": known | given}}


def channels(facts: Nccl, nodes: int, cards: int) -> int:
    """Number of channels over `nodes` nodes that use `cards` network cards each."""
    limit = _CHANNELS[facts.generation]
    return limit if nodes == 1 else min(limit, 2 * cards)
