"""Hand-over: ranks save and end together once one of them is signalled to stop.

torchrun's agents signal by SIGTERM: that of a host that is interrupted, and those that see a host that wants to join.
"""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist


class HandOver:
    """Listens for SIGTERM from now on, which no longer ends this process."""

    def __init__(self) -> None:
        self._signalled = False
        signal.signal(signal.SIGTERM, self._note_signal)

    def _note_signal(self, *_: Any) -> None:
        self._signalled = True

    def agreed(self) -> bool:
        """Whether any rank of the group has been signalled to stop; all ranks get the same answer."""
        shared = torch.tensor([float(self._signalled)])
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return bool(shared)
