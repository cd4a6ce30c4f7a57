"""Ring attention: keys and values circulate among ranks that share a sample's tokens (arXiv 2310.01889).

While a rank attends to one block, the next is in transit. In the backward pass the gradients of a block circulate with it. A
rank keeps the scores of one block at a time, and combines results by their log-sum-exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.strategy.layout.messages import pass_on, wait_all
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives

_ALL = slice(None)


class _Mask(NamedTuple):
    """The rank's queries that attend to a block's keys; if causal, each only up to its own position."""

    queries: slice
    keys: slice
    causal: bool = False


class RingAttention:
    """Causal attention of a rank's queries to all tokens. Ranks have tokens as in `context.own_positions`."""

    def __init__(self, collectives: PassCollectives, sequence: int) -> None:
        self._collectives, self.team = collectives, collectives.team
        self.part = sequence // (2 * self.team.size)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch, heads, own tokens, width) each, of keys and values maybe for fewer heads → the queries' shape."""
        # queries that share a head of keys are neighbours, in a dimension of their own
        grouped = query.reshape(len(query), key.shape[1], -1, *query.shape[2:])
        mixed: Tensor = _RingAttention.apply(self, grouped, torch.stack([key, value]))  # type: ignore[no-untyped-call]
        return mixed.flatten(1, 2)

    def blocks(self, own: Tensor) -> Iterator[tuple[_Mask, Tensor]]:
        """Keys and values of each rank, this one's first. Each is sent to the next rank while it is in use."""
        for hop in range(self.team.size):
            arriving = self.send_on(own) if hop + 1 < self.team.size else None
            yield self._mask((self.team.place - hop) % self.team.size), own
            if arriving is not None:
                own = arriving.wait()

    def send_on(self, tensor: Tensor) -> _TensorInTransit:
        """Starts to send to the next rank and to receive from the previous one."""
        theirs = torch.empty_like(tensor)
        return _TensorInTransit(self._collectives, theirs, tensor, pass_on(self.team, tensor, theirs))

    def _mask(self, source: int) -> _Mask:
        """All queries attend to the front part of earlier ranks; queries of the back part attend to all of later ranks."""
        if source == self.team.place:
            return _Mask(_ALL, _ALL, causal=True)
        return _Mask(_ALL, slice(self.part)) if source < self.team.place else _Mask(slice(self.part, None), _ALL)


class _TensorInTransit(NamedTuple):
    """A tensor in transit from the previous rank, while another is in transit to the next."""

    collectives: PassCollectives
    theirs: Tensor
    sent: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        with self.collectives.noted(self.sent):
            wait_all(self.works)
        return self.theirs


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, ring: RingAttention, query: Tensor, own: Tensor) -> Tensor:
        mixed = torch.zeros_like(query)
        log_sum = query.new_full(query.shape[:-1], -math.inf)
        for mask, block in ring.blocks(own.detach().contiguous()):
            key, value = block[..., mask.keys, :].unsqueeze(3)
            scores = _scores(query[..., mask.queries, :], key, mask.causal)
            added, before = scores.logsumexp(-1), log_sum[..., mask.queries]
            after = torch.logaddexp(before, added)
            own_share, share = ((part - after).exp().unsqueeze(-1) for part in (before, added))
            made = (scores - added.unsqueeze(-1)).exp() @ value
            mixed[..., mask.queries, :] = mixed[..., mask.queries, :] * own_share + made * share
            log_sum[..., mask.queries] = after
        context.ring = ring
        context.save_for_backward(query, own, mixed, log_sum)
        return mixed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        ring: RingAttention = context.ring
        query, own, mixed, log_sum = context.saved_tensors
        of_mixed = gradients[0]
        # the term that is equal for all scores of a query
        common = (of_mixed * mixed).sum(-1, keepdim=True)
        of_query, scale = torch.zeros_like(query), 1 / math.sqrt(query.shape[-1])
        arriving: _TensorInTransit | None = None
        for mask, block in ring.blocks(own.detach().contiguous()):
            (key, value), queries = block[..., mask.keys, :].unsqueeze(3), query[..., mask.queries, :]
            shares = (_scores(queries, key, mask.causal) - log_sum[..., mask.queries].unsqueeze(-1)).exp()
            of_made = of_mixed[..., mask.queries, :]
            of_scores = shares * (of_made @ value.mT - common[..., mask.queries, :]) * scale
            of_query[..., mask.queries, :] += of_scores @ key
            of_block = torch.zeros_like(block) if arriving is None else arriving.wait()
            of_block[..., mask.keys, :] += torch.stack([(of_scores.mT @ queries).sum(2), (shares.mT @ of_made).sum(2)])
            # gradients follow the block, and return to its rank after the last one
            arriving = ring.send_on(of_block)
        return None, of_query, arriving.wait() if arriving else None


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if not causal:
        return scores
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -math.inf)
