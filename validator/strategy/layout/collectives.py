"""Collectives of a team over flat tensors, each recorded as a span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout.team import Team

# torch before 2.13 has only the old names, which warn from 2.13 on
_ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collectives:
    """The collectives of a team. Its ranks make the same ones in the same order: spans are matched by a running number."""

    def __init__(self, recorder: Recorder, team: Team, stage: int = -1) -> None:
        self.recorder, self.team, self.stage = recorder, team, stage
        self._count = 0

    def begin_sum(self, flat: Tensor) -> Future[Tensor]:
        """Starts to sum `flat` over the team in place; the future returns it once the sum is complete."""
        end = self.begin(flat)
        work = dist.all_reduce(flat, group=self.team.group, async_op=True)

        def note(summed: Future[list[Tensor]]) -> Tensor:
            end()
            return summed.value()[0]

        summed: Future[Tensor] = work.get_future().then(note)
        return summed

    def sum(self, flat: Tensor) -> None:
        """Sums `flat` over the team in place."""
        with self.noted(flat):
            dist.all_reduce(flat, group=self.team.group)

    def gather(self, own: Tensor) -> list[Tensor]:
        """All-gather: the tensors of all ranks of the team, of equal shapes, in rank order."""
        gathered = [torch.empty_like(own) for _ in self.team.ranks]
        with self.noted(own.expand(self.team.size, *own.shape)):
            dist.all_gather(gathered, own, group=self.team.group)
        return gathered

    def begin_gather(self, whole: Tensor, own: Tensor) -> dist.Work:
        """Starts an all-gather into `whole`, in the team's order. Records nothing."""
        work: dist.Work = _ALL_GATHER(whole, own, group=self.team.group, async_op=True)
        return work

    def begin_scatter(self, own: Tensor, whole: Tensor) -> dist.Work:
        """Starts a reduce-scatter of `whole`, which leaves this rank's part of the sum in `own`. Records nothing."""
        work: dist.Work = _REDUCE_SCATTER(own, whole, group=self.team.group, async_op=True)
        return work

    @contextmanager
    def noted(self, moved: Tensor) -> Iterator[None]:
        """A context recorded as one collective. moved: the tensor whose size the span has."""
        end = self.begin(moved)
        yield
        end()

    def begin(self, moved: Tensor) -> Callable[[], None]:
        """Begins the span of a collective; returns the function that ends and records it."""
        begin, labels = self.recorder.now(), self.labels(moved)
        return lambda: self.note(begin, self.recorder.now(), labels)

    def note(self, begin: Any, end: Any, labels: Mapping[str, Any]) -> None:
        """Records the span of a collective between two marks. labels: as returned by `labels` when it began."""
        self.recorder.add(Phase.SYNCHRONISE, begin, end, stream=Stream.COMMUNICATION, stage=self.stage, **labels)

    def labels(self, moved: Tensor) -> dict[str, Any]:
        """Labels of the next collective's span, equal on all ranks of the team."""
        return {"size_bytes": float(moved.nbytes), "group": self.team.number, "match": self.next_match()}

    def next_match(self) -> int:
        """The next running number, equal on all ranks of the team."""
        self._count += 1
        return self._count
