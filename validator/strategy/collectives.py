"""Collectives over flat tensors, by whichever name torch has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

# torch before 2.13 has the old names alone, from 2.13 on those warn
_ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(output: Tensor, own: Tensor, group: dist.ProcessGroup | None) -> dist.Work:
    """Begins to gather what all ranks have, in their order."""
    work: dist.Work = _ALL_GATHER(output, own, group=group, async_op=True)
    return work


def reduce_scatter(output: Tensor, whole: Tensor, group: dist.ProcessGroup | None) -> dist.Work:
    """Begins to sum over all ranks, of which each gets its part."""
    work: dist.Work = _REDUCE_SCATTER(output, whole, group=group, async_op=True)
    return work
