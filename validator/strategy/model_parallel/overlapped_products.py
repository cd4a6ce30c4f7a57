"""Products of sequence-parallel ranks that overlap with their collectives (arXiv 2305.06942).

Each rank has a part of the tokens. Around a ring of the ranks, a product of one part is computed while the next part, or the
sum of another part, is in transit. As many bytes move as by an all-gather before the product, or a reduce-scatter after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from scaleproof.validator.strategy.layout.messages import pass_on, wait_all
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives

# of (batch, sequence, hidden)
_SEQUENCE: Final = 1


class OverlappedProducts:
    """Products of the tokens of all ranks of a team, each of which has a part of them."""

    def __init__(self, collectives: PassCollectives) -> None:
        self._collectives, self._team = collectives, collectives.team

    def column(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer of all tokens, with this rank's columns. x: this rank's tokens."""
        result: Tensor = _Column.apply(self, x, weight, bias)  # type: ignore[no-untyped-call]
        return result

    def row(self, x: Tensor, weight: Tensor) -> Tensor:
        """The sum over ranks of products of their rows, for this rank's tokens. x: all tokens."""
        result: Tensor = _Row.apply(self, x, weight)  # type: ignore[no-untyped-call]
        return result

    def parts(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each rank's tensor with its place, this rank's first; it is sent to the next rank while it is in use."""
        own = own.contiguous()
        with self._noted(own) as wait:
            for hop in range(self._team.size):
                theirs, works = torch.empty_like(own), list[dist.Work]()
                if hop + 1 < self._team.size:
                    works = pass_on(self._team, own, theirs)
                yield (self._team.place - hop) % self._team.size, own
                wait(works)
                own = theirs

    def sum_of(self, part: Callable[[int], Tensor]) -> Tensor:
        """The sum over ranks of this rank's part. part: computes this rank's summand of a part, by the place of its rank, while
        the sum of the previous part is in transit."""
        size, place = self._team.size, self._team.place
        total = part((place - 1) % size).contiguous()
        with self._noted(total) as wait:
            for hop in range(2, size + 1):
                theirs = torch.empty_like(total)
                works = pass_on(self._team, total, theirs)
                own = part((place - hop) % size)
                wait(works)
                total = theirs.add_(own)
        return total

    def chunks(self, whole: Tensor) -> tuple[Tensor, ...]:
        """The parts of all tokens, by the place of their rank."""
        return whole.chunk(self._team.size, _SEQUENCE)

    @contextmanager
    def _noted(self, part: Tensor) -> Iterator[Callable[[list[dist.Work]], None]]:
        """Records all messages as one collective, and each wait for one as an interruption of the pass."""
        recorder = self._collectives.recorder
        begin, labels = recorder.now(), self._collectives.labels(part.expand(self._team.size, *part.shape))

        def wait(works: list[dist.Work]) -> None:
            if works:
                with recorder.waiting(recorder.now()):
                    wait_all(works)

        yield wait
        self._collectives.note(begin, recorder.now(), labels)


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, products: OverlappedProducts, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        results, inputs = dict[int, Tensor](), dict[int, Tensor]()
        for place, part in products.parts(x.detach()):
            inputs[place], results[place] = part, functional.linear(part, weight, bias)
        context.products, context.has_bias = products, bias is not None
        context.save_for_backward(torch.cat([inputs[place] for place in sorted(inputs)], _SEQUENCE), weight)
        return torch.cat([results[place] for place in sorted(results)], _SEQUENCE)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (of_result,), (inputs, weight) = gradients, context.saved_tensors
        chunks = context.products.chunks(of_result)
        of_x = context.products.sum_of(lambda place: chunks[place] @ weight)
        flat = of_result.flatten(0, -2)
        return None, of_x, flat.mT @ inputs.flatten(0, -2), flat.sum(0) if context.has_bias else None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, products: OverlappedProducts, x: Tensor, weight: Tensor) -> Tensor:
        chunks = products.chunks(x)
        context.products = products
        context.save_for_backward(x, weight)
        return products.sum_of(lambda place: functional.linear(chunks[place], weight))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, weight = context.saved_tensors
        results, of_weight = dict[int, Tensor](), torch.zeros_like(weight)
        chunks = context.products.chunks(x)
        for place, part in context.products.parts(gradients[0]):
            results[place] = part @ weight
            of_weight += part.flatten(0, -2).mT @ chunks[place].flatten(0, -2)
        return None, torch.cat([results[place] for place in sorted(results)], _SEQUENCE), of_weight
