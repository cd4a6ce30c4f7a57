"""Expert parallelism: all-to-alls send a mixture's tokens to the ranks of their experts and combine the outputs (GShard, arXiv
2006.16668).

DeepSeek-V3 (arXiv 2412.19437) limits the nodes with a token's experts (section 2.1.2), sends a token once to each node, which
forwards it to its experts inside (section 3.2.2), and overlaps all-to-alls with another microbatch's compute (section 3.2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from scaleproof.simulator.cluster.collectives.cost import DurationBySize, processors_taken
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.model.operators import Routed
from scaleproof.simulator.parallelism.options import WirePrecision
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.compute_budget import LayerPass, Overlap

# Some of the expert ranks: those on the same rail of all nodes, or those on one node.
Span = Literal["between nodes", "inside a node"]

# Scales of 8-bit elements, 4 bytes for 128 of them (arXiv 2412.19437, section 3.3.2), are not counted.
_BYTES: Final[dict[WirePrecision, int]] = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Dispatch:
    """Options of the all-to-alls of expert-parallel ranks.

    node_limit: maximum number of nodes with a token's experts (arXiv 2412.19437, section 2.1.2); None for no limit. It reduces
    bytes only with deduplicated tokens. deduplicated: instead of once to each expert, a token is sent once to each node with
    some of its experts and, inside that node, once to each rank with some (DeepEP). dispatch_precision: of data sent to
    experts, activations forward and output gradients backward; combine_precision: of data sent back; the training precision if
    None. overlap: all-to-alls run next to another microbatch's compute (DualPipe, arXiv 2412.19437, section 3.2.1; the
    pipeline's fill and drain, which have no other microbatch, are not distinguished).
    """

    node_limit: int | None = None
    deduplicated: bool = False
    dispatch_precision: WirePrecision | None = None
    combine_precision: WirePrecision | None = None
    overlap: bool = False

    def element_bytes(self, routed: Routed, training_bytes: int) -> int:
        """Bytes per transferred element."""
        precision = self.combine_precision if routed.combines else self.dispatch_precision
        return training_bytes if precision is None else _BYTES[precision]

    def copies(self, routed: Routed, group: Group) -> tuple[float, float]:
        """Expected numbers of nodes and of ranks that a deduplicated token is sent to, its own included.

        A token's experts are `active` different ones, drawn uniformly from those of the allowed nodes.
        """
        nodes = min(self.node_limit or group.nodes, group.nodes)
        experts, ranks = nodes * routed.experts / group.nodes, nodes * group.size / group.nodes
        return expected_visited(nodes, experts, routed.active), expected_visited(ranks, experts, routed.active)

    def deduplicated_s(
        self, token_bytes: float, routed: Routed, group: Group, between: DurationBySize, inside: DurationBySize
    ) -> float:
        """Seconds to send a rank's tokens once to each of their nodes, while received tokens are forwarded inside the node;
        both overlap completely (section 3.2.2). token_bytes: bytes of one copy of all tokens. between, inside: seconds by size
        of all-to-alls of the spans of `group`."""
        nodes, ranks = self.copies(routed, group)
        return max(between(token_bytes * nodes), inside(token_bytes * ranks))

    def overlapped(self, pass_: LayerPass, job: Job) -> Overlap | None:
        """The passes of another microbatch over the layer that an all-to-all overlaps with; None if its pass waits for it."""
        # recomputation is a part of these passes that not all layers have
        latest = max(pass_, LayerPass.BACKWARD)
        return Overlap(lambda part: part.pass_ <= latest, processors_taken(job.cluster)) if self.overlap else None


# All-to-alls of the communication library, in the training precision.
PLAIN: Final = Dispatch()


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


def ranks_of(span: Span, group: Group) -> Group:
    """The expert ranks of a span, of those of `group`."""
    members = group.first if span == "between nodes" else np.flatnonzero(group.node_of == 0)
    return Group.of(np.array(group.ranks)[members].tolist(), group.devices)
