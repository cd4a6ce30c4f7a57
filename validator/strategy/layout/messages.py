"""Messages from one rank to another, and waiting for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.strategy.layout.team import Team


def send(tensor: Tensor, target: int, group: dist.ProcessGroup | None = None) -> dist.Work:
    """Starts to send `tensor` to the rank `target`."""
    return _begun(dist.isend(tensor, target, group=group))


def receive(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> dist.Work:
    """Starts to receive `tensor` from the rank `source`."""
    return _begun(dist.irecv(tensor, source, group=group))


def pass_on(team: Team, leaving: Tensor, arriving: Tensor, back: bool = False) -> list[dist.Work]:
    """Starts to send to the next rank of a team and to receive from the previous one, or the reverse if `back`."""
    source, target = (team.ahead, team.behind) if back else (team.behind, team.ahead)
    # the receive is posted before the send
    receives = dist.P2POp(dist.irecv, arriving, source, team.group)
    return dist.batch_isend_irecv([receives, dist.P2POp(dist.isend, leaving, target, team.group)])


class Waitable(Protocol):
    """What can be waited for."""

    def wait(self) -> object:
        """Returns once it is complete."""


def wait_all(messages: Iterable[Waitable]) -> None:
    """Returns once all messages have been sent or received."""
    for message in messages:
        message.wait()


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "both ranks are in the group"
    return work
