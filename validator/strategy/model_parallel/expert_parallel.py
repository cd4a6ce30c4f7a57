"""Expert parallelism: workers that share a mixture's experts, and send one another their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.train.models.mixture import ExpertsHere
from scaleproof.validator.train.models.models import Block


class ExpertsApart(ExpertsHere):
    """This rank's of a mixture's experts: rows of tokens, sorted by expert, go to the ranks that have those, and come back."""

    def __init__(self, everyones: ExpertsHere, collectives: PassCollectives) -> None:
        self.team = collectives.team
        own = len(everyones) // self.team.size
        first = self.team.place * own
        super().__init__({str(number): everyones[str(number)] for number in range(first, first + own)})
        self.collectives = collectives

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        for_each = counts.view(self.team.size, -1)
        from_each = self.collectives.counts(for_each)
        sent, received = for_each.sum(1).tolist(), from_each.sum(1).tolist()
        # they come by rank, and of each by expert
        expert = torch.arange(len(self), device=rows.device).repeat(self.team.size)
        order = expert.repeat_interleave(from_each.flatten()).argsort(stable=True)
        made = super().forward(self.collectives.exchanged(rows, received, sent)[order], from_each.sum(0))
        return self.collectives.exchanged(made[order.argsort()], sent, received)


def share_experts(block: Block, collectives: PassCollectives) -> None:
    """Leaves this rank's experts in a block, if it has any."""
    if block.mixed:
        block.mixture.experts = ExpertsApart(block.mixture.experts, collectives)
