"""Groups of nodes of eight GPUs with one network card each, and what NCCL chooses and how long it takes on them."""

from __future__ import annotations

from scaleproof.simulator.cluster import Link, Node
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.constants import TimingConstants, constants_of
from scaleproof.simulator.cluster.collectives.nccl.timing import choices, nccl_choice
from scaleproof.simulator.cluster.collectives.settings import Adjust, Nccl

HOPPER, BLACKWELL = Nccl(generation="hopper"), Nccl(generation="blackwell")
INSIDE_Bps, CARD_Bps = 450e9, 50e9


def links(ranks: int, reduces: bool = False, devices: int = 8, cards: int = 8) -> GroupLinks:
    """Nodes with NVLink of 450 GB/s and cards of 400 Gbit/s. reduces: whether the network's switches do."""
    inside = Link.model_validate({"bandwidth": "450 GB/s", "latency": "1 us"})
    network = {"bandwidth": f"{cards * 400} Gbit/s", "latency": "5 us", "in_network_reduction": reduces}
    return GroupLinks(Group.of(ranks, devices), Node(devices=devices, cards=cards, link=inside), Link.model_validate(network))


def constants(facts: Nccl = HOPPER) -> TimingConstants:
    return constants_of(facts, "infiniband", Adjust())


def seconds(op: Op, group: GroupLinks, size_bytes: float, facts: Nccl = HOPPER, algorithm: str | None = None) -> float:
    """Seconds of what NCCL chooses, or of one algorithm."""
    usable = choices(op, group, facts, constants(facts), algorithm)
    return nccl_choice(usable, size_bytes).at(size_bytes).seconds(size_bytes)


def choice(op: Op, group: GroupLinks, size_bytes: float, facts: Nccl = HOPPER) -> str:
    """The algorithm that NCCL chooses."""
    return nccl_choice(choices(op, group, facts, constants(facts)), size_bytes).algorithm
