"""Hand-over: ranks save and end together once one of them is asked to stop.

torchrun's agents ask with SIGTERM: that of a host that is interrupted, and those that see a host that wants to join.
"""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist


class HandOver:
    """Listens for SIGTERM from now on, which no longer ends this process."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Whether any rank of the group has been asked to stop; all ranks get the same answer."""
        shared = torch.tensor([float(self._asked)])
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return bool(shared)
