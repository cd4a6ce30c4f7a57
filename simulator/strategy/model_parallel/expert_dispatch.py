"""Expert dispatch: bytes of the all-to-alls that send a mixture's tokens to the ranks of their experts and combine the
outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.model.operators import Routed
from scaleproof.simulator.parallelism.plan import WirePrecision

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
