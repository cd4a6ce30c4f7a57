"""Used devices: number of devices of each node that ranks use, so that groups that exchange within passes straddle no nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from scaleproof.simulator.cluster import Cluster

if TYPE_CHECKING:
    from scaleproof.simulator.parallelism.plan import Plan


# Share of a node's devices that may stay idle so that larger groups have equal parts on nodes: 64 of 72 are used.
_MOST_IDLE: Final = 1 / 8


class _GroupSpan(NamedTuple):
    """Ranks that communicate within passes. ranks: number of consecutive ranks that a whole number of such groups fills."""

    kind: str
    ranks: int


def placed(cluster: Cluster, plan: Plan) -> Cluster:
    """The cluster with the number of devices of each node that a plan's ranks use: the given one, else all.

    If groups of ranks then straddle nodes that could contain them, it is the largest number that the groups divide, as far as
    the cluster has nodes enough; the other devices stay idle. Groups that no node contains have equal parts on nodes where that
    leaves few devices idle.
    """
    whole = cluster.unplaced
    if cluster.gives_used or plan.ranks <= whole.node.devices:
        return whole
    for devices in _fitting(plan, whole.node.devices):
        used = whole if devices == whole.node.devices else whole.using(devices)
        if _nodes(plan, used) <= whole.nodes:
            return used
    return whole


def placement_warnings(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Warnings about devices that stay idle, and about groups of ranks that lie on several nodes, with a remedy."""
    devices, installed = cluster.node.devices, cluster.node.installed
    if plan.ranks <= devices or devices == 1:
        return
    straddling = [span for span in _spans(plan) if span.ranks <= devices and devices % span.ranks]
    if devices < installed and not cluster.gives_used:
        yield (
            f"ranks use {devices} of the {installed} devices of each node, so that groups that exchange within passes straddle "
            "no nodes; the others stay idle, set cluster.node.used to decide otherwise"
        )
    for kind, ranks in straddling:
        fitting = installed - installed % ranks
        remedy = [f"cluster.node.used={fitting}"] if cluster.gives_used else []
        if (nodes := _nodes(plan, cluster.using(fitting))) > cluster.nodes:
            remedy.append(f"cluster.nodes={nodes}")
        given = f"set {' and '.join(remedy)}, or " if remedy else ""
        yield (
            f"{kind}-parallel groups straddle nodes, as {ranks} ranks do not divide the {devices} devices used of each node: "
            f"exchanges within passes wait for the network; {given}choose degrees that divide {devices}"
        )
    for kind, ranks in _spans(plan):
        if ranks > devices and ranks % devices:
            yield (
                f"{kind}-parallel groups of {ranks} ranks have parts of different sizes on nodes of {devices} used devices; "
                f"set cluster.node.used to a divisor of {ranks}, or choose degrees that {devices} divides"
            )
    if plan.tensor > devices and plan.order[0] == "tensor":
        yield (
            f"tensor-parallel groups of {plan.tensor} ranks lie on several nodes, of {devices} devices used each: exchanges "
            f"within passes wait for the network; set strategy.tensor to at most {devices}"
        )


def _nodes(plan: Plan, cluster: Cluster) -> int:
    """Number of nodes of a plan's ranks on a cluster, and of its servers."""
    return cluster.nodes_of(plan.ranks) + plan.servers


def _fitting(plan: Plan, devices: int) -> Iterator[int]:
    """Numbers of a node's devices that ranks may use, the one that suits most groups first: a multiple of all groups that fit
    into a node, of all but the outermost, and so on; for each of these, first the largest that divides larger groups, if hardly
    less."""
    multiples, larger = [1], [span.ranks for span in _spans(plan) if span.ranks > devices]
    for span in _spans(plan):
        if (multiple := math.lcm(multiples[-1], span.ranks)) <= devices:
            multiples.append(multiple)
    for multiple in reversed(multiples):
        most = devices - devices % multiple
        least = math.ceil(devices * (1 - _MOST_IDLE))
        yield next((used for used in range(most, least - 1, -multiple) if not any(size % used for size in larger)), most)
        yield most


def _spans(plan: Plan) -> Iterator[_GroupSpan]:
    """The groups of a plan that communicate within passes."""
    mesh = plan.grid(1)
    if plan.tensor > 1:
        yield _GroupSpan("tensor", mesh.stride("tensor") * plan.tensor)
    if plan.context > 1:
        yield _GroupSpan("context", mesh.stride("context") * plan.context)
    if plan.expert > 1 and not plan.folds_experts:
        yield _GroupSpan("expert", mesh.stride("workers") * plan.expert)
    elif plan.expert > 1:
        # taken from all ranks of a stage, those that share layers first
        ranks, inner = plan.expert * plan.expert_shards, plan.model_parallel_size
        yield _GroupSpan("expert", ranks if ranks <= inner else mesh.stride("workers") * (ranks // inner))
