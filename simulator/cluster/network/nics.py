"""Network cards of nodes: their bandwidth written by card, and a check of bandwidths that are those of one card."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_Bps

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster

_NICS: Final = re.compile(r"\s*(\d{1,6})\s*[x×*].*")
# Rate of each network card in NVIDIA's DGX of a GPU generation: DGX-1 and DGX-2 with 100 Gbit/s, DGX A100 with 200, DGX H100
# and DGX B200 with 400 (data sheets, recalled); MI300X in Azure's ND series with 400.
_CARD_Bps: Final = {"volta": 12.5e9, "ampere": 25e9, "hopper": 50e9, "blackwell": 50e9, "cdna": 50e9}


def without_nics(cluster: Any) -> Any:
    """YAML of a cluster in which `network: {nics: 8 x 400 Gbit/s}` is the bandwidth of a node and the number of its cards.

    Raises FieldError, with the field's path within the cluster.
    """
    network, node = (cluster.get(part) if isinstance(cluster, dict) else None for part in ("network", "node"))
    if not isinstance(network, dict) or "nics" not in network:
        return cluster
    nics, rest = network["nics"], {key: value for key, value in network.items() if key != "nics"}
    match = _NICS.fullmatch(str(nics))
    if match is None:
        message = f"expected the number of network cards and the rate of each, such as '8 x 400 Gbit/s', got {str(nics)[:40]!r}"
        raise FieldError(("network", "nics"), message)
    if "bandwidth" in rest:
        raise FieldError(("network", "nics"), "is the bandwidth of a node, which is also given; leave one of both out")
    cards = int(match[1])
    node = node if isinstance(node, dict) else {}
    if node.get("cards", cards) != cards:
        raise FieldError(("node", "cards"), f"is {node['cards']}, but network.nics has {cards}; leave cards out")
    return cluster | {"network": rest | {"bandwidth": nics}, "node": node | {"cards": cards}}


def one_card_warning(cluster: Cluster) -> str:
    """A warning if the bandwidth of nodes with several GPUs is at most that of one network card of such nodes; "" otherwise.

    Clusters whose nodes have one card are not warned about if they give a source, or the number of cards.
    """
    node, network, kernels = cluster.node, cluster.network, cluster.device.kernels
    card_Bps = _CARD_Bps.get(kernels.generation, 0.0) if kernels is not None else 0.0
    if network is None or cluster.nodes == 1 or node.installed == 1 or network.bandwidth_Bps > card_Bps:
        return ""
    if node.cards == 1 and (cluster.source or "cards" in node.model_fields_set):
        return ""
    cards = node.cards if node.cards > 1 else node.installed
    rate, usual = format_Bps(network.bandwidth_Bps), format_Bps(card_Bps)
    return (
        f"cluster.network.bandwidth: {rate} for a node of {node.installed} {cluster.device.name} is at most one network card "
        f"({usual} each in such nodes); for {cards} of them, write network.nics: {cards} x {rate}"
    )
