"""Expert parallelism: workers that share a mixture's experts, and send one another their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from scaleproof.simulator.parallelism.options import WirePrecision
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout.mesh import by_node, expert_teams
from scaleproof.validator.strategy.layout.team import Team
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
        self.first = self.team.place * own
        super().__init__({str(number): whole[str(number)] for number in range(self.first, self.first + own)})
        self.collectives, self.dispatch, self.combine = collectives, dispatch, combine

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Sends rows to the experts' ranks, computes those that arrive, and sends the results back."""
        for_each = counts.view(self.team.size, -1)
        from_each = self.collectives.counts(for_each)
        sent, received = for_each.sum(1).tolist(), from_each.sum(1).tolist()
        # rows arrive sorted by source rank, then by expert
        expert = torch.arange(len(self), device=rows.device).repeat(self.team.size)
        # the size is known already, so that the host need not wait for a GPU once more
        order = expert.repeat_interleave(from_each.flatten(), output_size=sum(received)).argsort(stable=True)
        arrived = self.collectives.exchanged(rows, received, sent, self.dispatch, self.combine)
        results = self.computed(arrived[order], from_each.sum(0))
        return self.collectives.exchanged(results[order.argsort()], sent, received, self.combine, self.dispatch)

    def computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The outputs of this rank's experts for rows sorted by expert. counts: rows of each."""
        return super().forward(rows, counts)


class DeduplicatedExperts(ShardedExperts):
    """This rank's experts of a mixture: a token is sent once to each node with some of its experts, and inside that node once
    to each rank with some (DeepEP). Weighted sums of outputs return on the same way, summed on each node.

    Tokens are sent with the weights and the numbers of their experts.
    """

    mixes = True

    def __init__(
        self, whole: LocalExperts, every: PassCollectives, between: PassCollectives, inside: PassCollectives,
        dispatch: Wire, combine: Wire,
    ) -> None:  # fmt: skip
        super().__init__(whole, every, dispatch, combine)
        each = len(self)
        rank_of = torch.arange(len(whole)) // each
        self.hops = (between, rank_of // inside.team.size), (inside, rank_of % inside.team.size)

    def forward(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:  # type: ignore[override]
        """The weighted sum of the outputs of each token's experts."""
        return self._forwarded(tokens, weights, chosen, self.hops)

    def _forwarded(
        self, tokens: Tensor, weights: Tensor, chosen: Tensor, hops: Sequence[tuple[PassCollectives, Tensor]]
    ) -> Tensor:
        """Sends tokens to the places of a team where their experts are, further on from there, and sums what returns.

        chosen: numbers of experts, -1 for those that another rank is responsible for.
        """
        if not hops:
            return self._own(tokens, weights, chosen)
        (collectives, place_of), *further = hops
        places = torch.where(chosen < 0, -1, place_of.to(chosen.device)[chosen])
        visits = torch.stack([(places == place).any(-1) for place in range(collectives.team.size)])
        place, token = visits.nonzero(as_tuple=True)
        counts = visits.sum(-1, keepdim=True)
        received, sent = collectives.counts(counts).flatten().tolist(), counts.flatten().tolist()
        rows = collectives.exchanged(tokens[token], received, sent, self.dispatch, self.combine)
        shares = collectives.exchanged(weights[token], received, sent, None, None)
        numbers = torch.where(places[token] == place.unsqueeze(-1), chosen[token], -1)
        arrived = collectives.exchanged(numbers, received, sent, None, None)
        results = self._forwarded(rows, shares, arrived, further)
        returned = collectives.exchanged(results, sent, received, self.combine, self.dispatch)
        return torch.zeros_like(tokens).index_add(0, token, returned)

    def _own(self, rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of the outputs of this rank's experts."""
        row, slot = (chosen >= 0).nonzero(as_tuple=True)
        expert, order = (chosen[row, slot] - self.first).sort(stable=True)
        row, slot = row[order], slot[order]
        outputs = self.computed(rows[row], torch.bincount(expert, minlength=len(self)))
        return torch.zeros_like(rows).index_add(0, row, outputs * weights[row, slot].unsqueeze(-1))


class ExpertTeams(NamedTuple):
    """The ranks with different experts, in order. all_ranks: all of them. between: those on the same place of each node, None
    unless tokens are sent once to each node; inside: those of a node."""

    all_ranks: PassCollectives
    between: PassCollectives | None = None
    inside: PassCollectives | None = None

    @classmethod
    def of(cls, recorder: Recorder, plan: Plan, devices: int) -> Self:
        """The teams of this rank; to be called on all ranks. devices: of a node."""
        groups = expert_teams(plan)[0]
        whole = PassCollectives(recorder, Team.of(groups, "expert"))
        if not plan.deduplicated:
            return cls(whole)
        nodes = [node for group in groups for node in by_node(group, devices)]
        rails = [list(rail) for group in groups for rail in zip(*by_node(group, devices), strict=True)]
        between, inside = Team.of(rails, "experts of a rail"), Team.of(nodes, "experts of a node")
        return cls(whole, PassCollectives(recorder, between), PassCollectives(recorder, inside))


@dataclass(frozen=True)
class NodeLimit:
    """Limits a token's experts to a number of nodes: those with the largest sums of the weights that a token would use of each
    node if its experts were spread evenly over them (arXiv 2412.19437, section 2.1.2).

    experts: of each node. limit: number of nodes. active: experts of a token.
    """

    experts: Sequence[range]
    limit: int
    active: int

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and numbers of each token's experts, from the router's (tokens, experts) weights."""
        best = -(-self.active // self.limit)
        sums = [weights[:, own.start : own.stop].topk(min(best, len(own))).values.sum(-1) for own in self.experts]
        nodes = torch.stack(sums, -1).topk(self.limit).indices
        node_of = torch.cat([torch.full((len(own),), node) for node, own in enumerate(self.experts)]).to(weights.device)
        allowed = (node_of == nodes.unsqueeze(-1)).any(1)
        chosen = weights.masked_fill(~allowed, -1.0).topk(self.active).indices
        return weights.gather(-1, chosen), chosen


def share_experts(block: Block, teams: ExpertTeams, plan: Plan, devices: int) -> None:
    """Reduces a block with a mixture to this rank's experts; leaves other blocks as they are. devices: of a node."""
    if not block.mixed:
        return
    mixture, precisions = block.mixture, (wire_of(plan.dispatch_precision), wire_of(plan.combine_precision))
    if plan.node_limit is not None:
        nodes = experts_of_nodes(plan, mixture.count, devices)
        mixture.choose = NodeLimit(nodes, min(plan.node_limit, len(nodes)), mixture.active)
    if teams.between is not None and teams.inside is not None:
        mixture.experts = DeduplicatedExperts(mixture.experts, teams.all_ranks, teams.between, teams.inside, *precisions)
    else:
        mixture.experts = ShardedExperts(mixture.experts, teams.all_ranks, *precisions)


def experts_of_nodes(plan: Plan, count: int, devices: int) -> list[range]:
    """The experts of each node on which ranks with different experts are; of the first such ranks."""
    own, first, nodes = count // plan.expert, 0, []
    for ranks in by_node(expert_teams(plan)[0][0], devices):
        nodes.append(range(first, first + own * len(ranks)))
        first += own * len(ranks)
    return nodes


def wire_of(precision: WirePrecision | None) -> Wire:
    """The data type of a precision of messages; None for that of the tensors."""
    return None if precision is None else {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
