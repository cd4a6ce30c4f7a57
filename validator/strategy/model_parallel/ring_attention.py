"""Ring attention: keys and values go round among ranks that share a sample's tokens (arXiv 2310.01889).

While a rank attends to one block, the next is on its way. Backward, the gradients of a block go round with it. A rank keeps the
scores of one block at a time, and puts results together by the logarithms of their sums of exponents.
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


class _Seen(NamedTuple):
    """Which of a rank's queries see which of a block's keys; if causal, each those up to its own place."""

    queries: slice
    keys: slice
    causal: bool = False


class RingAttention:
    """Causal attention of a rank's queries to all tokens. Each rank has a part from the front and one from the back."""

    def __init__(self, collectives: PassCollectives, sequence: int) -> None:
        self._collectives, self.team = collectives, collectives.team
        self.part = sequence // (2 * self.team.size)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch, heads, own tokens, width) each → the same shape."""
        mixed: Tensor = _RingAttention.apply(self, query, torch.stack([key, value]))  # type: ignore[no-untyped-call]
        return mixed

    def blocks(self, own: Tensor) -> Iterator[tuple[_Seen, Tensor]]:
        """Keys and values of each rank, this one's first. One is sent on while it is in use."""
        for hop in range(self.team.size):
            coming = self.send_on(own) if hop + 1 < self.team.size else None
            yield self._seen((self.team.place - hop) % self.team.size), own
            if coming is not None:
                own = coming.wait()

    def send_on(self, tensor: Tensor) -> _Coming:
        """Begins to send to the next rank, and to receive from the one before."""
        theirs = torch.empty_like(tensor)
        return _Coming(self._collectives, theirs, tensor, pass_on(self.team, tensor, theirs))

    def _seen(self, source: int) -> _Seen:
        """Own tokens come in their order. Of ranks before all see the front part, of those behind the back part sees all."""
        if source == self.team.place:
            return _Seen(_ALL, _ALL, causal=True)
        return _Seen(_ALL, slice(self.part)) if source < self.team.place else _Seen(slice(self.part, None), _ALL)


class _Coming(NamedTuple):
    """A tensor on its way from the rank before, while another is on its way to the next."""

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
        for seen, block in ring.blocks(own.detach().contiguous()):
            key, value = block[..., seen.keys, :]
            scores = _scores(query[..., seen.queries, :], key, seen.causal)
            added, before = scores.logsumexp(-1), log_sum[..., seen.queries]
            after = torch.logaddexp(before, added)
            own_share, share = ((part - after).exp().unsqueeze(-1) for part in (before, added))
            made = (scores - added.unsqueeze(-1)).exp() @ value
            mixed[..., seen.queries, :] = mixed[..., seen.queries, :] * own_share + made * share
            log_sum[..., seen.queries] = after
        context.ring = ring
        context.save_for_backward(query, own, mixed, log_sum)
        return mixed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        ring: RingAttention = context.ring
        query, own, mixed, log_sum = context.saved_tensors
        of_mixed = gradients[0]
        # of each query's scores what all have in common
        common = (of_mixed * mixed).sum(-1, keepdim=True)
        of_query, scale = torch.zeros_like(query), 1 / math.sqrt(query.shape[-1])
        coming: _Coming | None = None
        for seen, block in ring.blocks(own.detach().contiguous()):
            (key, value), queries = block[..., seen.keys, :], query[..., seen.queries, :]
            shares = (_scores(queries, key, seen.causal) - log_sum[..., seen.queries].unsqueeze(-1)).exp()
            of_made = of_mixed[..., seen.queries, :]
            of_scores = shares * (of_made @ value.mT - common[..., seen.queries, :]) * scale
            of_query[..., seen.queries, :] += of_scores @ key
            of_block = torch.zeros_like(block) if coming is None else coming.wait()
            of_block[..., seen.keys, :] += torch.stack([of_scores.mT @ queries, shares.mT @ of_made])
            # with the block, and after the last one home
            coming = ring.send_on(of_block)
        return None, of_query, coming.wait() if coming else None


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if not causal:
        return scores
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -math.inf)
