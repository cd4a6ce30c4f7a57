"""Collectives within passes, each with its counterpart in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.train.recompute import computed_once

# Data type of a message, that of the tensor if None.
Wire = torch.dtype | None


class PassCollectives(Collectives):
    """A team's collectives within passes. They block the pass, whose span is recorded in pieces."""

    @contextmanager
    def noted(self, moved: Tensor) -> Iterator[None]:
        """A context recorded as one collective that interrupts the pass."""
        with self.recorder.interruption(stage=self.stage, **self.labels(moved)):
            yield

    def entered(self, x: Tensor) -> Tensor:
        """A tensor that all ranks have, as input of a divided layer: identity forward, sum of gradients backward."""
        return both_ways(identity, self.summed, x)

    def left(self, x: Tensor) -> Tensor:
        """The sum of each rank's output of a divided layer: sum forward, identity backward."""
        return both_ways(self.summed, identity, x)

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        """All-gather along a dimension forward, reduce-scatter of gradients backward."""
        return both_ways(lambda part: self.together(part, dim), lambda whole: self.part_of_sum(whole, dim), x)

    def scattered(self, x: Tensor, dim: int) -> Tensor:
        """Reduce-scatter along a dimension forward, all-gather of gradients backward."""
        return both_ways(
            lambda whole: computed_once(lambda: self.part_of_sum(whole, dim)), lambda part: self.together(part, dim), x
        )

    def joined(self, shard: Tensor, dim: int) -> Tensor:
        """All-gather along a dimension forward, this rank's shard of gradients that all ranks have backward."""
        return both_ways(lambda own: self.together(own, dim), lambda whole: self._own(whole, dim), shard)

    def divided(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's shard of a tensor that all ranks have forward, all-gather of gradients backward."""
        return both_ways(lambda x: self._own(x, dim), lambda own: self.together(own, dim), whole)

    def exchanged(self, rows: Tensor, received: Sequence[int], sent: Sequence[int], ahead: Wire, back: Wire) -> Tensor:
        """All-to-all of rows, and of their gradients backward. received, sent: number of rows by place in the team.

        ahead, back: precisions of rows and of gradients on their way, their own if None.
        """

        def moved(own: Tensor, arriving: Sequence[int], leaving: Sequence[int], wire: Wire) -> Tensor:
            return self._all_to_all(own.to(wire or own.dtype), arriving, leaving).to(own.dtype)

        return both_ways(lambda own: moved(own, received, sent, ahead), lambda g: moved(g, sent, received, back), rows)

    def transposed(self, x: Tensor, parted: int, joined: int) -> Tensor:
        """All-to-all that splits dimension `parted` over the team and concatenates along `joined`; the reverse backward."""
        return both_ways(lambda own: self._transposed(own, parted, joined), lambda g: self._transposed(g, joined, parted), x)

    def counts(self, counts: Tensor) -> Tensor:
        """All-to-all of integers, one row for each rank of the team, without gradients."""
        return self._all_to_all(counts, [1] * len(counts), [1] * len(counts))

    def summed(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Allreduce over the team with `op`, without gradients."""
        whole = x.detach().clone(memory_format=torch.contiguous_format)
        with self.noted(whole):
            dist.all_reduce(whole, op, group=self.team.group)
        return whole

    def together(self, part: Tensor, dim: int) -> Tensor:
        """All-gather along a dimension, in the team's order, without gradients."""
        own = part.detach().movedim(dim, 0).contiguous()
        whole = own.new_empty((self.team.size * len(own), *own.shape[1:]))
        with self.noted(whole):
            self.begin_gather(whole, own).wait()
        return whole.movedim(0, dim).contiguous()

    def part_of_sum(self, whole: Tensor, dim: int) -> Tensor:
        """Reduce-scatter along a dimension, without gradients."""
        summand = whole.detach().movedim(dim, 0).contiguous()
        own = summand.new_empty((len(summand) // self.team.size, *summand.shape[1:]))
        with self.noted(summand):
            self.begin_scatter(own, summand).wait()
        return own.movedim(0, dim).contiguous()

    def _own(self, whole: Tensor, dim: int) -> Tensor:
        return whole.detach().chunk(self.team.size, dim)[self.team.place].clone(memory_format=torch.contiguous_format)

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
    """Applies one function forward and another to gradients backward."""

    @staticmethod
    def forward(context: Any, ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        context.back = back
        return ahead(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return None, None, context.back(gradients[0])


def identity(x: Tensor) -> Tensor:
    """The same values as another tensor, as autograd functions must return."""
    return x.view_as(x)


def both_ways(ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies `ahead` to x in the forward pass, and `back` to gradients in the backward pass."""
    result: Tensor = _Collective.apply(ahead, back, x)  # type: ignore[no-untyped-call]
    return result
