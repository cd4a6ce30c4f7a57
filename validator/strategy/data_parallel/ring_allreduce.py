"""Ring allreduce, message by message: a reduce-scatter, then an all-gather, around a ring (Patarasuk & Yuan 2009)."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.messages import pass_on, wait_all


class Ring(Collectives):
    """Sums by single messages, each recorded as a span on both sides; other collectives are the library's."""

    def sum(self, flat: Tensor) -> None:
        """Sums `flat` over the team in place, in 2 (n − 1) rounds in which each of n ranks sends a chunk to the next one."""
        size, place = self.team.size, self.team.place
        chunks = torch.tensor_split(flat, size)
        with self.noted(flat):
            for turn in range(size - 1):
                own = chunks[(place - turn - 1) % size]
                arrived = torch.empty_like(own)
                self.take_turn(chunks[(place - turn) % size], arrived)
                own.add_(arrived)
            for turn in range(size - 1):
                self.take_turn(chunks[(place - turn + 1) % size], chunks[(place - turn) % size])

    def take_turn(self, leaving: Tensor, arriving: Tensor) -> None:
        """Sends a chunk to the next rank and receives one from the rank before, at the same time."""
        match, begin = self.next_match(), self.recorder.now()
        wait_all(pass_on(self.team, leaving, arriving))
        end = self.recorder.now()
        for phase, peer, moved in ((Phase.SEND, self.team.ahead, leaving), (Phase.RECEIVE, self.team.behind, arriving)):
            self.recorder.add(
                phase,
                begin,
                end,
                stream=Stream.COMMUNICATION,
                stage=self.stage,
                size_bytes=float(moved.nbytes),
                peer=peer,
                match=match,
            )
