"""Ring allreduce, message by message: a reduce-scatter, then an all-gather, around a ring (Patarasuk & Yuan 2009)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.run import Phase, Stream
from validator.recorder import Recorder
from validator.strategy.team import Team
from validator.strategy.wire import Wire


class Ring(Wire):
    """Sums are made of messages, each of which has its span on both sides; what else there is comes from the library."""

    def __init__(self, recorder: Recorder, team: Team, stage: int = -1) -> None:
        super().__init__(recorder, team, stage)
        self._end_send: Callable[[], None] = lambda: None

    def sum(self, flat: Tensor) -> None:
        """Sums `flat` over the team in place, in 2 (n − 1) rounds in which each of n ranks sends a chunk to the next one."""
        size, place = self.team.size, self.team.place
        chunks = torch.tensor_split(flat, size)
        with self.noted(flat.nbytes):
            for turn in range(size - 1):
                own = chunks[(place - turn - 1) % size]
                arrived = torch.empty_like(own)
                self.pass_on(chunks[(place - turn) % size], arrived)
                own.add_(arrived)
            for turn in range(size - 1):
                self.pass_on(chunks[(place - turn + 1) % size], chunks[(place - turn) % size])
            self._end_sends()

    def pass_on(self, leaving: Tensor, arriving: Tensor) -> None:
        """Sends a chunk to the next rank and waits for one from the rank before.

        What was sent is waited for a round later: a rank that waits for its successor as well goes at the pace of both. By the
        time that a chunk is overwritten its successor has it, from which all that comes later was made.
        """
        ranks, place, match = self.team.ranks, self.team.place, self.next_match()
        ahead, behind = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        group, begin = self.team.group, self.recorder.now()
        messages = [dist.P2POp(dist.isend, leaving, ahead, group), dist.P2POp(dist.irecv, arriving, behind, group)]
        # one for both on NCCL
        *sending, receiving = dist.batch_isend_irecv(messages)
        receiving.wait()
        self._note(Phase.RECEIVE, begin, arriving, behind, match)
        self._end_sends(lambda: self._wait(sending, begin, leaving, ahead, match))

    def _end_sends(self, following: Callable[[], None] = lambda: None) -> None:
        """Waits for what was sent before; `following` waits for what is on its way."""
        self._end_send()
        self._end_send = following

    def _wait(self, sending: Sequence[dist.Work], begin: Any, leaving: Tensor, peer: int, match: int) -> None:
        for work in sending:
            work.wait()
        self._note(Phase.SEND, begin, leaving, peer, match)

    def _note(self, phase: Phase, begin: Any, moved: Tensor, peer: int, match: int) -> None:
        self.recorder.add(
            phase,
            begin,
            self.recorder.now(),
            stream=Stream.COMMUNICATION,
            stage=self.stage,
            size_bytes=float(moved.nbytes),
            peer=peer,
            match=match,
        )
