"""Collectives within passes, of ranks that share them: each has a counterpart in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.strategy.layout.collectives import Collectives


class PassCollectives(Collectives):
    """What a team exchanges within passes. A pass is held up for as long as that takes, which its recorder is told."""

    @contextmanager
    def noted(self, moved: Tensor) -> Iterator[None]:
        with self.recorder.interruption(stage=self.stage, **self.labels(moved)):
            yield

    def entered(self, x: Tensor) -> Tensor:
        """What all have alike, and each reads for a part of the result: gradients are summed."""
        return both_ways(alike, self.summed, x)

    def left(self, x: Tensor) -> Tensor:
        """The sum of what each has a summand of: all get the same gradient."""
        return both_ways(self.summed, alike, x)

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        """The parts of all, along a dimension: gradients are summed, and each gets its part's."""
        return both_ways(lambda part: self.together(part, dim), lambda whole: self.part_of_sum(whole, dim), x)

    def scattered(self, x: Tensor, dim: int) -> Tensor:
        """Each one's part of the sum, along a dimension: all get the gradients of all parts."""
        return both_ways(lambda whole: self.part_of_sum(whole, dim), lambda part: self.together(part, dim), x)

    def exchanged(self, rows: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        """Rows for each of the team → rows from each: gradients go back. received, sent: how many, by place."""
        return both_ways(lambda own: self._all_to_all(own, received, sent), lambda g: self._all_to_all(g, sent, received), rows)

    def transposed(self, x: Tensor, parted: int, joined: int) -> Tensor:
        """Parts along dimension `parted`, one for each of the team → those from each along `joined`: gradients go back."""
        return both_ways(lambda own: self._transposed(own, parted, joined), lambda g: self._transposed(g, joined, parted), x)

    def counts(self, counts: Tensor) -> Tensor:
        """Whole numbers for each of the team, one row each → those from each."""
        return self._all_to_all(counts, [1] * len(counts), [1] * len(counts))

    def summed(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """The sum over the team, or what else `op` makes."""
        whole = x.detach().clone(memory_format=torch.contiguous_format)
        with self.noted(whole):
            dist.all_reduce(whole, op, group=self.team.group)
        return whole

    def together(self, part: Tensor, dim: int) -> Tensor:
        """The parts of all along a dimension, in the order of their places."""
        own = part.detach().movedim(dim, 0).contiguous()
        whole = own.new_empty((self.team.size * len(own), *own.shape[1:]))
        with self.noted(whole):
            self.begin_gather(whole, own).wait()
        return whole.movedim(0, dim).contiguous()

    def part_of_sum(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part along a dimension of the sum over the team."""
        summand = whole.detach().movedim(dim, 0).contiguous()
        own = summand.new_empty((len(summand) // self.team.size, *summand.shape[1:]))
        with self.noted(summand):
            self.begin_scatter(own, summand).wait()
        return own.movedim(0, dim).contiguous()

    def _transposed(self, x: Tensor, parted: int, joined: int) -> Tensor:
        each = [1] * self.team.size
        parts = self._all_to_all(torch.stack(x.chunk(self.team.size, parted)), each, each)
        return torch.cat(parts.unbind(), joined)

    def _all_to_all(self, own: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        own = own.detach().contiguous()
        theirs = own.new_empty((sum(received), *own.shape[1:]))
        with self.noted(own):
            dist.all_to_all_single(theirs, own, list(received), list(sent), group=self.team.group)
        return theirs


class _Collective(torch.autograd.Function):
    """One function forward, another of gradients backward."""

    @staticmethod
    def forward(context: Any, ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        context.back = back
        return ahead(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return None, None, context.back(gradients[0])


def alike(x: Tensor) -> Tensor:
    """The same, as another tensor."""
    return x.view_as(x)


def both_ways(ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What `ahead` makes of it; `back` is what becomes of its gradients."""
    result: Tensor = _Collective.apply(ahead, back, x)  # type: ignore[no-untyped-call]
    return result
