"""Lines of nccl-tests, in the columns of scenarios/published/collectives.csv, as collectives on a cluster: the shipped one of
that name, or one built from the row's columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from scaleproof.simulator.analysis.collective.time import collective_time, parse_op
from scaleproof.simulator.cluster import Cluster, CollectiveSettings
from scaleproof.simulator.cluster.collectives.groups import Op, bus_factor
from scaleproof.simulator.cluster.collectives.nccl.constants import pytorch_call_s
from scaleproof.simulator.cluster.collectives.settings import Generation, Nccl, facts_of, has_peers
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.topology_kinds import PcieTree
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster

Row = Mapping[str, str]

# Shipped clusters by a word of the system's name, used if the row's GPU is of the cluster's generation.
_SYSTEMS: Final = {
    "p4d.24xlarge": "aws-p4d", "p4de.24xlarge": "aws-p4de", "p6-b200": "aws-p6-b200", "coreweave gb200": "coreweave-gb200",
    "a3-mega": "gcp-a3-mega", "a3 mega": "gcp-a3-mega", "gcp n1": "gcp-n1-v100", "h200 node": "h200-node",
    "jean zay": "jean-zay-v100", "nebius": "nebius-h100", "bm.gpu.h100": "oci-h100", "vultr": "vultr-b200",
}  # fmt: skip
# The usual system of a generation, for what a row does not state.
_USUAL: Final[dict[Generation, str]] = {
    "volta": "jean-zay-v100", "ampere": "selene-a100", "hopper": "dgx-h100", "blackwell": "vultr-b200",
    "cdna": "azure-nd-mi300x-v5",
}  # fmt: skip
# NVLink per GPU and direction, GB/s, from the data sheets; other GPUs have the value of their generation.
_NVLINK_GBps: Final = {"P100": 80, "V100": 150, "A800": 200, "H800": 200, "GB200": 900, "GB300": 900, "B200": 900, "H20": 450}
_PCIE_GBps: Final = {"volta": 15.75, "ampere": 31.5, "hopper": 63.0, "blackwell": 63.0}  # generation 3, 4, 5, 5; x16
_CARD_GBITps: Final = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
# Transports by a word of a row's network, and the generation of EFA by that of the GPUs that it comes with.
_TRANSPORTS: Final = {
    "infiniband": "infiniband", "roce": "roce", "tcpxo": "tcpxo", "tcpx": "tcpx", "slingshot": "slingshot",
    "omni-path": "omni-path", "tcp": "sockets", "gbe": "sockets",
}  # fmt: skip
_EFA: Final[dict[Generation, str]] = {
    "volta": "efa-1", "ampere": "efa-1", "hopper": "efa-2", "blackwell": "efa-3",
}  # fmt: skip
_FASTEST_CARD_Bps: Final = 800e9 / 8
_RATE: Final = re.compile(
    r"(?:(?P<count>\d{1,4})\s*[x×*]\s*)?(?:[A-Z]DR\s*)?(?P<rate>\d{1,6}(?:\.\d+)?)\s*(?P<unit>[TG])(?P<kind>B|b|ig)?(?:E|ps|it)?\b",
)
_VERSION: Final = re.compile(r"2\.\d+")
# Words of a row's links that say that GPUs reach each other's memory.
_PEERS: Final = re.compile(r"\b(P2P|peer-to-peer|peer access)\b(?! disabled)", re.IGNORECASE)
# Owner and name of a repository, or an address.
_REPOSITORY: Final = re.compile(r"https?://\S+|[\w.-]+/[\w.-]+(?=[@ ])")
_MOST_RANKS: Final = 10_000_000
_load = cache(load_cluster)


@dataclass(frozen=True)
class RowCase:
    """A row as a collective on a cluster. called_s: seconds of the call beyond the library's own. assumed: columns that were
    blank."""

    op: Op
    size_bytes: int
    ranks: int
    algorithm: str | None
    cluster: Cluster
    measured_s: float
    called_s: float
    assumed: tuple[str, ...]

    def seconds(self, on: Cluster) -> float:
        """Predicted seconds on a cluster."""
        return collective_time(self.op, self.size_bytes, self.ranks, on, self.algorithm) + self.called_s


def case_of(row: Row) -> RowCase:
    """The case of a row. Raises ScaleproofError, which begins with the reason, if it has no time or cannot be predicted."""
    size_bytes, ranks = size_and_ranks(row)
    if size_bytes < 0:
        raise InputError("no size or number of GPUs")
    op = parse_op(row["collective"])
    seconds_measured = measured_s(row, size_bytes, ranks)
    if not seconds_measured > 0:
        raise InputError("no time or bandwidth")
    cluster, assumed = cluster_of(row, ranks)
    algorithm = algorithm_of(row)
    called_s = pytorch_call_s() if is_pytorch(row) else 0.0
    unstated = (*assumed, *([] if algorithm else ["algorithm"]))
    return RowCase(op, size_bytes, ranks, algorithm, cluster, seconds_measured, called_s, unstated)


def size_and_ranks(row: Row) -> tuple[int, int]:
    """Size in bytes and number of ranks; (-1, 0) if one of them is missing or out of range."""
    try:
        size_bytes, ranks = int(float(row["size_bytes"])), int(float(row["n_gpus"]))
    except (ValueError, OverflowError):
        return -1, 0
    return (size_bytes, ranks) if 0 <= size_bytes <= 2**63 and 1 <= ranks <= _MOST_RANKS else (-1, 0)


def source_of(row: Row) -> str:
    """The repository or page that a row's source names, else the system: rows of one source may have errors in common."""
    repository = _REPOSITORY.match(row.get("source") or "")
    return repository[0] if repository else row.get("instance_or_system") or "not named"


def algorithm_of(row: Row) -> str | None:
    """The simulator's name of NCCL's algorithm; None if the row leaves the choice to NCCL."""
    name = row.get("algorithm", "").lower().replace("_", "")
    return {"nvlstree": "nvls_tree"}.get(name, name) or None


def is_pytorch(row: Row) -> bool:
    """Whether the collective was called from PyTorch, not from nccl-tests."""
    return "pytorch" in row.get("note", "").lower()


def measured_s(row: Row, size_bytes: int, ranks: int) -> float:
    """Measured seconds, out of place if given, otherwise in place; from the time or the bandwidth. NaN if neither is given."""
    for where in ("out_of_place", "in_place"):
        time_us, bus_GBps = _number(row.get(f"time_us_{where}")), _number(row.get(f"busbw_GBps_{where}"))
        if time_us > 0:
            return time_us * 1e-6
        if bus_GBps > 0:
            return size_bytes * bus_factor(parse_op(row["collective"]), ranks) / (bus_GBps * 1e9)
    return math.nan


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def cluster_of(row: Row, ranks: int) -> tuple[Cluster, list[str]]:
    """The row's system with as many nodes as it uses, and the names of columns that had to be assumed."""
    facts = facts_of(row["gpu"])
    if facts is None or facts.generation not in _USUAL:
        raise InputError(f"unknown GPU: {row['gpu']}")
    version = _VERSION.match(row.get("nccl_version", ""))
    if version:
        facts = facts.model_copy(update={"version": version[0]})
    nodes = _count(row.get("n_nodes"))
    per_node = _count(row.get("gpus_per_node")) or (-(-ranks // nodes) if nodes else 8)
    assumed = [] if nodes or row.get("gpus_per_node") else ["gpus_per_node"]
    # an NVLink domain may span a rack
    domain = max(per_node, 72) if "NVL72" in row.get("intra_node", "") + row["gpu"] else per_node
    name = shipped_name(row)
    shipped = _load(name) if name else None
    if shipped is not None and _fits(shipped, facts, spans_nodes=ranks > domain):
        cluster = shipped if version is None else _with_version(shipped, version[0])
    else:
        cluster, more = _from_columns(row, facts, per_node, spans_nodes=ranks > domain)
        cluster, assumed = _joined(cluster, domain), assumed + more
    return _used(cluster, ranks, min(domain, -(-ranks // nodes)) if nodes and domain == per_node else domain), assumed


def shipped_name(row: Row) -> str | None:
    """Name of the shipped cluster of a row's system; None if there is none."""
    return next((name for word, name in _SYSTEMS.items() if word in row["instance_or_system"].lower()), None)


def _with_version(cluster: Cluster, version: str) -> Cluster:
    """The cluster with a version of NCCL."""
    facts = cluster.nccl_facts
    assert facts is not None
    nccl = facts.model_copy(update={"version": version})
    return cluster.model_copy(update={"collectives": cluster.collectives.model_copy(update={"nccl": nccl})})


def _joined(cluster: Cluster, devices: int) -> Cluster:
    """The cluster with nodes that are NVLink domains of `devices` GPUs, with all their cards."""
    times = devices // cluster.node.devices
    node = cluster.node.model_copy(update={"installed": devices, "cards": cluster.node.cards * times})
    network = _link(_rate_Bps(cluster.network) * times).model_copy(update={"transport": cluster.transport})
    return cluster.model_copy(update={"node": node, "network": network})


def _used(cluster: Cluster, ranks: int, devices: int) -> Cluster:
    """The nodes that `ranks` ranks, `devices` per node, need; fewer devices use only the cards next to them."""
    network, cards = cluster.network, cluster.node.cards
    share = min(1.0, devices / min(cards, cluster.node.devices))
    node = cluster.node.model_copy(update={"installed": devices, "cards": max(1, round(cards * share))})
    if network is not None:
        network = network.model_copy(update={"bandwidth_Bps": network.bandwidth_Bps * share})
    return cluster.model_copy(update={"nodes": -(-ranks // devices), "node": node, "network": network})


def _count(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else 0


def _fits(shipped: Cluster, facts: Nccl, spans_nodes: bool) -> bool:
    """Whether a shipped system has the row's GPU generation, and a network if the row needs one."""
    own = shipped.nccl_facts
    return own is not None and own.generation == facts.generation and (shipped.network is not None or not spans_nodes)


def _from_columns(row: Row, facts: Nccl, per_node: int, spans_nodes: bool) -> tuple[Cluster, list[str]]:
    """The usual system of the GPU's generation with the links that the row states, and the names of columns left blank."""
    usual, inside, between = _load(_USUAL[facts.generation]), row.get("intra_node", ""), row.get("inter_node", "")
    assumed = ["intra_node"] if not inside and per_node > 1 else []
    if facts.interconnect == "pcie" or ("pcie" in inside.lower() and "nvlink" not in inside.lower()):
        facts = facts.model_copy(update={"interconnect": "pcie"})
        port = _pcie_link(row, facts, per_node)
    else:
        named = next((rate for name, rate in _NVLINK_GBps.items() if name in row["gpu"]), 0)
        port = _link(named * 1e9 or _rate_Bps(usual.node.link))
        if facts.generation == "cdna" and usual.node.link is not None and per_node == usual.node.devices:
            port = port.model_copy(update={"topology": usual.node.link.topology})
    if "EFA" in between:  # settings of aws-ofi-nccl; the first EFA generation, used with these GPUs, is unordered
        ordered = facts.generation not in ("volta", "ampere")
        facts = facts.model_copy(update={"network_latency_s": 75e-6, "ll128": ordered})
    network_Bps, cards = network_of(between, per_node)
    if network_Bps == 0:
        network_Bps, cards = _rate_Bps(usual.network) / usual.node.cards * per_node, per_node
        assumed += ["inter_node"] if spans_nodes else []
    network = _link(network_Bps).model_copy(update={"transport": _transport(between, facts)})
    update = {
        "node": usual.node.model_copy(update={"installed": per_node, "cards": cards, "link": port}),
        "network": network,
        "collectives": CollectiveSettings(nccl=facts),
    }
    return usual.model_copy(update=update), assumed


def _pcie_link(row: Row, facts: Nccl, per_node: int) -> Link:
    """The PCIe link of the GPU: through the host without peer-to-peer access, under one switch if the row says so."""
    inside, port = row.get("intra_node", ""), _link(_PCIE_GBps[facts.generation] * 1e9)
    denied = "no peer access" in inside or not has_peers(row["gpu"])
    update: dict[str, Any] = {"peer_to_peer": False if denied else True if _PEERS.search(inside) else None}
    if "one switch" in inside:
        fields = {"per_switch": per_node, "between_sockets": f"{port.bandwidth_Bps} B/s"}
        update["topology"] = PcieTree.model_validate(fields)
    return port.model_copy(update=update)


def _transport(between: str, facts: Nccl) -> str:
    """Name of the transport that a row's network states, else InfiniBand."""
    if "EFA" in between:
        return _EFA[facts.generation]
    return next((name for word, name in _TRANSPORTS.items() if word in between.lower()), "infiniband")


def _rate_Bps(link: Link | None) -> float:
    """Bandwidth in bytes/s of a link that the clusters in _USUAL have."""
    assert link is not None
    return link.bandwidth_Bps


def _link(bandwidth_Bps: float) -> Link:
    """A link of that bandwidth without latency, because NCCL's model has its own latencies."""
    return Link.model_validate({"bandwidth": f"{bandwidth_Bps} B/s", "latency": 0})


def network_of(text: str, devices: int) -> tuple[float, int]:
    """Bytes/s of a node's network cards together, and their number, from text such as '8x400 Gb/s'.

    Zero and one if the text states no rate. A bare name such as NDR means one such card per device; a rate that no single card
    reaches is that of one card per device together.
    """
    rates = list(_RATE.finditer(text))
    if not rates:
        card_Bps = next((rate * 1e9 / 8 for name, rate in _CARD_GBITps.items() if re.search(rf"\b{name}", text)), 0.0)
        return card_Bps * devices, devices if card_Bps else 1
    match = next((rate for rate in rates if rate["count"]), rates[0])
    rate_Bps = float(match["rate"]) * {"T": 1e12, "G": 1e9}[match["unit"]] / (1 if match["kind"] == "B" else 8)
    if match["count"]:
        return rate_Bps * int(match["count"]), max(1, int(match["count"]))
    if re.match(r"[a-z/]*\s*(per |/)\s*(gpu|device)", text[match.end() :].lower()):
        return rate_Bps * devices, devices
    return rate_Bps, devices if rate_Bps > _FASTEST_CARD_Bps else 1
