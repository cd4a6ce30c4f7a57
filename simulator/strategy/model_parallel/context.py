"""Context parallelism: ranks divide the sequence, and each needs the keys and values of all ranks for attention.

Ring attention (arXiv 2310.01889) passes them on around a ring while attention to those received before is computed. Otherwise
they are gathered (Llama 3, arXiv 2407.21783, section 3.3.2), or tokens are exchanged for heads by all-to-alls
(DeepSpeed-Ulysses, arXiv 2309.14509), and the pass waits.
"""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import Costing, CostOf, costing, processors_taken
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.compute_budget import LayerPass, Overlap

# Algorithms of the messages that ring attention sends in place of collectives.
_RING: Final[dict[Op, str]] = {"all_gather": "ring", "reduce_scatter": "returning_ring"}


def cost_of(exchange: Exchange) -> CostOf:
    """The cost of a collective along the sequence: that of messages around a ring if it is hidden behind attention."""
    return ring_costing if exchange.hidden else costing


def ring_costing(op: Op, group: Group, cluster: Cluster) -> Costing:
    """Cost by size of an all-gather or a reduce-scatter that ring attention makes of messages to the next rank.

    Over gloo the messages are timed, as its collectives move other bytes. With other libraries their own collectives are timed:
    NCCL's rings move as many bytes, without the last message with which gradients return to their rank.
    """
    return costing(op, group, cluster, _RING[op] if cluster.library == "gloo" else None)


def overlap(pass_: LayerPass, exchange: Exchange, job: Job) -> Overlap | None:
    """The attention that a collective overlaps with; None if the pass waits for all of it."""
    if not exchange.hidden or job.framework.ring.waits:
        return None
    return Overlap.within(pass_, lambda operator, _: operator.name == exchange.overlapped, processors_taken(job.cluster))
