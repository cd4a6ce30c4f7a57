"""Streams of threads that communicate next to a GPU's training."""

from __future__ import annotations

import torch


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream of its own on a GPU; None on a processor.

    Torch gives streams of one priority from a pool of 32 in turn, so that two threads may get the same and wait for each other.
    Streams of high priority are another pool than those of autograd and of NCCL's futures (c10/cuda/CUDAStream.cpp).
    """
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
