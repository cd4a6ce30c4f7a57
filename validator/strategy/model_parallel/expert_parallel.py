"""Expert parallelism: workers that share a mixture's experts, and send one another their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleproof.simulator.strategy.model_parallel.expert_dispatch import WirePrecision
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, Wire
from scaleproof.validator.train.models.mixture import LocalExperts
from scaleproof.validator.train.models.transformer import Block


class ShardedExperts(LocalExperts):
    """This rank's experts of a mixture: rows of tokens, sorted by expert, are sent to the experts' ranks and come back.

    dispatch, combine: precisions of rows sent to experts and sent back. Gradients of outputs are sent to experts, and those of
    inputs back.
    """

    def __init__(self, whole: LocalExperts, collectives: PassCollectives, dispatch: Wire, combine: Wire) -> None:
        self.team = collectives.team
        own = len(whole) // self.team.size
        first = self.team.place * own
        super().__init__({str(number): whole[str(number)] for number in range(first, first + own)})
        self.collectives, self.dispatch, self.combine = collectives, dispatch, combine

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Sends rows to the experts' ranks, computes those that arrive, and sends the results back."""
        for_each = counts.view(self.team.size, -1)
        from_each = self.collectives.counts(for_each)
        sent, received = for_each.sum(1).tolist(), from_each.sum(1).tolist()
        # rows arrive sorted by source rank, then by expert
        expert = torch.arange(len(self), device=rows.device).repeat(self.team.size)
        order = expert.repeat_interleave(from_each.flatten()).argsort(stable=True)
        arrived = self.collectives.exchanged(rows, received, sent, self.dispatch, self.combine)
        results = super().forward(arrived[order], from_each.sum(0))
        return self.collectives.exchanged(results[order.argsort()], sent, received, self.combine, self.dispatch)


def share_experts(block: Block, collectives: PassCollectives, plan: Plan) -> None:
    """Reduces a block with a mixture to this rank's experts; leaves other blocks as they are."""
    if block.mixed:
        precisions = wire_of(plan.dispatch_precision), wire_of(plan.combine_precision)
        block.mixture.experts = ShardedExperts(block.mixture.experts, collectives, *precisions)


def wire_of(precision: WirePrecision | None) -> Wire:
    """The data type of a precision of messages; None for that of the tensors."""
    return None if precision is None else {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
