"""Expert parallelism: all-to-alls send a mixture's tokens to the ranks of their experts and combine the outputs (GShard, arXiv
2006.16668).

DeepSeek-V3 (arXiv 2412.19437) limits the nodes with a token's experts (section 2.1.2), sends a token once to each node, which
forwards it to its experts inside (section 3.2.2), and overlaps all-to-alls with another microbatch's compute (section 3.2.1).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import concurrent_collective, direct_costing, processors_taken
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.model.operators import Routed
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


def copies(plan: Plan, routed: Routed, group: Group) -> tuple[float, float]:
    """Expected numbers of nodes and of ranks that a deduplicated token is sent to, its own included: once to each node with
    some of its experts and, inside that node, once to each rank with some.

    A token's experts are `active` different ones, drawn uniformly from those of the allowed nodes.
    """
    nodes = min(plan.node_limit or group.nodes, group.nodes)
    experts, ranks = nodes * routed.experts / group.nodes, nodes * group.size / group.nodes
    return expected_visited(nodes, experts, routed.active), expected_visited(ranks, experts, routed.active)


def all_to_all_s(plan: Plan, routed: Routed, size_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds in which the ranks of a group exchange `size_bytes` of each, once for each of a token's experts.

    Deduplicated tokens are sent once to each of their nodes, while received ones are forwarded inside the node; both overlap
    completely (arXiv 2412.19437, section 3.2.2).
    """
    if not plan.deduplicated:
        return concurrent_collective("alltoall", group, cluster)(size_bytes)
    on_rail, on_node = (np.array(group.ranks)[members] for members in (group.first, group.node_of == 0))
    between, inside = (
        concurrent_collective("alltoall", Group.of(ranks.tolist(), group.devices), cluster, direct_costing)
        for ranks in (on_rail, on_node)
    )
    token_bytes, (nodes, ranks) = size_bytes / routed.active, copies(plan, routed, group)
    return max(between(token_bytes * nodes), inside(token_bytes * ranks))


def overlap(pass_: LayerPass, plan: Plan, job: Job) -> Overlap | None:
    """The passes of another microbatch over the layer that an all-to-all overlaps with; None if its pass waits for it. The
    pipeline's fill and drain, which have no other microbatch, are not distinguished."""
    # recomputation is a part of these passes that not all layers have
    latest = max(pass_, LayerPass.BACKWARD)
    return Overlap(lambda part: part.pass_ <= latest, processors_taken(job.cluster)) if plan.overlap_experts else None


def expected_visited(bins: float, experts: float, active: int) -> float:
    """Expected number of `bins` equal parts of the `experts` experts that contain some of `active` different, uniformly drawn
    ones.

    A part of q of n experts contains none with the hypergeometric probability C(n − q, k) / C(n, k).
    """
    if active >= experts:
        return bins
    other_experts = experts - experts / bins
    missed = math.prod(max(0.0, other_experts - drawn) / (experts - drawn) for drawn in range(active))
    return bins * (1 - missed)
