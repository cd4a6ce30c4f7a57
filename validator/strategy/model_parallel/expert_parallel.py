"""Expert parallelism: workers that share a mixture's experts, and send one another their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.train.models.mixture import LocalExperts
from scaleproof.validator.train.models.transformer import Block


class ShardedExperts(LocalExperts):
    """This rank's experts of a mixture: rows of tokens, sorted by expert, are sent to the experts' ranks and come back."""

    def __init__(self, whole: LocalExperts, collectives: PassCollectives) -> None:
        self.team = collectives.team
        own = len(whole) // self.team.size
        first = self.team.place * own
        super().__init__({str(number): whole[str(number)] for number in range(first, first + own)})
        self.collectives = collectives

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Sends rows to the experts' ranks, computes those that arrive, and sends the results back."""
        for_each = counts.view(self.team.size, -1)
        from_each = self.collectives.counts(for_each)
        sent, received = for_each.sum(1).tolist(), from_each.sum(1).tolist()
        # rows arrive sorted by source rank, then by expert
        expert = torch.arange(len(self), device=rows.device).repeat(self.team.size)
        order = expert.repeat_interleave(from_each.flatten()).argsort(stable=True)
        results = super().forward(self.collectives.exchanged(rows, received, sent)[order], from_each.sum(0))
        return self.collectives.exchanged(results[order.argsort()], sent, received)


def share_experts(block: Block, collectives: PassCollectives) -> None:
    """Reduces a block with a mixture to this rank's experts; leaves other blocks as they are."""
    if block.mixed:
        block.mixture.experts = ShardedExperts(block.mixture.experts, collectives)
