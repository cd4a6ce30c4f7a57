"""Expert parallelism: all-to-alls send a mixture's tokens to the ranks of their experts and combine the outputs (GShard, arXiv
2006.16668).

DeepSeek-V3 (arXiv 2412.19437) limits the nodes with a token's experts (section 2.1.2), sends a token once to each node, which
forwards it to its experts inside (section 3.2.2), and overlaps all-to-alls with another microbatch's compute (section 3.2.1).
Megatron-Core's --moe-shared-expert-overlap overlaps them with the shared experts instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import concurrent_collective, direct_costing, processors_taken
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.units import parse_Bps
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange, Operator, Routed
from scaleproof.simulator.parallelism.options import WirePrecision
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.compute_budget import LayerPass, Overlap

# Scales of 8-bit elements, 4 bytes for 128 of them (arXiv 2412.19437, section 3.3.2), are not counted.
_BYTES: Final[dict[WirePrecision, int]] = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


def element_bytes(plan: Plan, routed: Routed, training_bytes: int) -> int:
    """Bytes per transferred element: activations are sent to experts forward, and gradients of outputs backward."""
    precision = plan.combine_precision if routed.combines else plan.dispatch_precision
    return training_bytes if precision is None else _BYTES[precision]


class Dispatch(NamedTuple):
    """Kernels that send tokens. processors: that they occupy on each device. processor_Bps: rate of each over NVLink.
    inside_share, between_share: of the links' nominal bandwidth that they reach. generations: of GPUs that they run on.
    transports: between nodes."""

    processors: int
    processor_Bps: float
    inside_share: float
    between_share: float
    generations: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()


_AS_LINKS: Final = Dispatch(1, math.inf, 1.0, 1.0)


@functools.cache
def dispatches() -> Mapping[str, Dispatch]:
    """The kernels by the name of their dispatcher, from scenarios/collectives/dispatchers.yaml."""
    found = yaml_file.shipped(catalog.ROOT / "collectives" / "dispatchers.yaml")["dispatchers"]
    return {
        name: Dispatch(
            one["processors"], parse_Bps(one["processor_rate"]), one["inside_rate"], one["between_rate"],
            tuple(one["generations"]), tuple(one["transports"]),
        )
        for name, one in found.items()
    }  # fmt: skip


def is_available(dispatcher: str, cluster: Cluster) -> bool:
    """Whether kernels that send tokens run on a cluster's devices and network, as collective libraries always do."""
    kernels, known = cluster.device.kernels, dispatches().get(dispatcher)
    if known is None:
        return True
    on_network = cluster.nodes == 1 or cluster.transport in known.transports
    return kernels is not None and kernels.generation in known.generations and on_network and cluster.node.link is not None


def copies(plan: Plan, routed: Routed, group: Group) -> tuple[float, float]:
    """Expected numbers of nodes and of ranks that a deduplicated token is sent to, its own included: once to each node with
    some of its experts and, inside that node, once to each rank with some."""
    if plan.node_limit is not None and plan.node_limit < group.nodes:
        routed = routed._replace(groups=group.nodes, active_groups=plan.node_limit)
    return routed.visited(group.nodes), routed.visited(group.size)


def all_to_all_s(plan: Plan, routed: Routed, size_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds in which the ranks of a group exchange `size_bytes` of each, once for each of a token's experts.

    Deduplicated tokens are sent once to each of their nodes, while received ones are forwarded inside the node; both overlap
    completely (arXiv 2412.19437, section 3.2.2).
    """
    if not plan.deduplicated:
        return concurrent_collective("alltoall", group, cluster)(size_bytes)
    # other devices send with their own library, as fast as links are
    kernels = dispatches()[plan.dispatcher] if cluster.library == "nccl" else _AS_LINKS
    nvlink = cluster.node.link
    rated_Bps = kernels.processors * kernels.processor_Bps
    inside_share = min(kernels.inside_share, rated_Bps / nvlink.bandwidth_Bps) if nvlink is not None else 1.0
    between, inside = (concurrent_collective("alltoall", one, cluster, direct_costing) for one in _rail_and_node(group))
    token_bytes, (nodes, ranks) = size_bytes / routed.active, copies(plan, routed, group)
    return max(between(token_bytes * nodes / kernels.between_share), inside(token_bytes * ranks / inside_share))


@functools.lru_cache(maxsize=512)
def _rail_and_node(group: Group) -> tuple[Group, Group]:
    """The first member of a group on each node, and the members on its first node."""
    on_rail, on_node = (np.array(group.ranks)[members] for members in (group.first, group.node_of == 0))
    return Group.of(on_rail.tolist(), group.devices), Group.of(on_node.tolist(), group.devices)


def overlap(pass_: LayerPass, exchange: Exchange, layer: Layer, plan: Plan, job: Job) -> Overlap | None:
    """The compute that an all-to-all overlaps with: passes of another microbatch over the layer, or the layer's shared experts;
    None if its pass waits for it.

    Passes that fill and drain the pipeline have no other microbatch, so that their share of the all-to-alls is exposed."""
    if not (plan.overlap_experts or plan.overlap_shared_experts):
        return None
    taken, kernels = processors_taken(job.cluster), job.cluster.device.kernels
    if plan.deduplicated and kernels is not None:
        taken = min(1.0, dispatches()[plan.dispatcher].processors / kernels.processors)
    if plan.overlap_shared_experts:
        shared = _shared_operators(exchange, layer)
        return Overlap.within(pass_, lambda operator, _: operator in shared, taken)
    # recomputation is a part of these passes that not all layers have
    latest, alone = max(pass_, LayerPass.BACKWARD), unpaired(plan)
    return Overlap(lambda part: part.pass_ <= latest, alone + (1 - alone) * taken, 1 - alone)


def _shared_operators(exchange: Exchange, layer: Layer) -> frozenset[Operator]:
    """The operators of shared experts next to an all-to-all: in the forward pass the first product and the activation while
    tokens are sent, the last product while outputs return; in the backward pass the reverse."""
    assert exchange.routed is not None
    places = (place for module in layer.modules if module.name == "shared_experts" for place in module.operators)
    is_last = exchange.routed.combines != exchange.backward
    return frozenset(one for one in map(layer.operators.__getitem__, places) if (one.name == "down") == is_last)


def unpaired(plan: Plan) -> float:
    """Share of a rank's forward passes without a backward pass of another microbatch next to them: those that fill the
    pipeline, one more than 1F1B has (Megatron-Core, docs/user-guide/features/moe_a2a_overlap.md), on the average rank."""
    warmup = 1 + (plan.stages - 1) / 2 * min(2, plan.chunks) + (plan.chunks - 1) * plan.stages
    return min(1.0, warmup / (plan.microbatches * plan.chunks))
