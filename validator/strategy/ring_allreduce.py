"""Ring allreduce, message by message: a reduce-scatter, then an all-gather, around a ring (Patarasuk & Yuan 2009)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.run import Phase, Stream
from validator.strategy.wire import Wire


class Ring(Wire):
    """Sums are made of messages, each of which has its span on both sides; what else there is comes from the library."""

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

    def pass_on(self, leaving: Tensor, arriving: Tensor) -> None:
        """Sends a chunk to the next rank and receives one from the rank before, at the same time."""
        ranks, place, match = self.team.ranks, self.team.place, self.next_match()
        ahead, behind = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        group, begin = self.team.group, self.recorder.now()
        # gloo sends what is awaited already: receives that are posted last cost a ring of four a fifth of its time
        messages = [dist.P2POp(dist.irecv, arriving, behind, group), dist.P2POp(dist.isend, leaving, ahead, group)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        end = self.recorder.now()
        for phase, peer, moved in ((Phase.SEND, ahead, leaving), (Phase.RECEIVE, behind, arriving)):
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
