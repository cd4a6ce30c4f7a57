"""The wire: collectives of a team whose thread waits for them, each with its span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.run import Phase, Stream
from validator.recorder import Recorder
from validator.strategy.team import Team


class Wire:
    """The library's collectives. All ranks of a team call the same ones in the same order, by which spans are matched."""

    def __init__(self, recorder: Recorder, team: Team, stage: int = -1) -> None:
        self.recorder, self.team = recorder, team
        self.stage = stage
        self._count = 0

    def sum(self, flat: Tensor) -> None:
        """Sums `flat` over the team in place."""
        with self.noted(flat.nbytes):
            dist.all_reduce(flat, group=self.team.group)

    def gather(self, own: Tensor) -> list[Tensor]:
        """What all ranks of the team have, in their order; as much of each."""
        gathered = [torch.empty_like(own) for _ in self.team.ranks]
        with self.noted(own.nbytes * self.team.size):
            dist.all_gather(gathered, own, group=self.team.group)
        return gathered

    @contextmanager
    def noted(self, size_bytes: float) -> Iterator[None]:
        """The span of a collective."""
        match, begin = self.next_match(), self.recorder.now()
        yield
        self.recorder.add(
            Phase.SYNCHRONISE,
            begin,
            self.recorder.now(),
            stream=Stream.COMMUNICATION,
            stage=self.stage,
            size_bytes=float(size_bytes),
            group=self.team.number,
            match=match,
        )

    def next_match(self) -> int:
        """The same number on all ranks of the team."""
        self._count += 1
        return self._count
