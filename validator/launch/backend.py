"""The library of a process group, on which its ranks agree: NCCL where each has a GPU of its own.

Launchers show a rank all GPUs of its machine, or its own alone, so that the number of visible ones says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch import host_staged_backend
from scaleproof.validator.launch.rank_environment import RankEnvironment
from scaleproof.validator.record import gpu_facts, provenance

# Of a rank that computes on the CPU.
_NO_GPU: Final = ""


def agreed(place: RankEnvironment, store: Store, device: torch.device, timeout: timedelta) -> str:
    """The name of the backend; to be called on all ranks. Raises RunError where some have GPUs and others have none."""
    exchange = PrefixStore("gpus", store)
    exchange.set_timeout(timeout)
    exchange.set(str(place.rank), _gpu(device))
    return backend_for([exchange.get(str(rank)).decode() for rank in range(place.ranks)])


def backend_for(gpus: Sequence[str]) -> str:
    """The backend for ranks on these GPUs, by their names on all machines. Raises RunError where some ranks have none."""
    if _NO_GPU in gpus and any(gpus):
        without, others = gpus.index(_NO_GPU), len(gpus) - gpus.count(_NO_GPU)
        raise RunError(
            f"rank {without} sees no GPU, but {others} of {len(gpus)} ranks do; look at its driver and CUDA_VISIBLE_DEVICES"
        )
    if not any(gpus):
        return "gloo"
    # NCCL allows one rank per GPU
    return "nccl" if len(set(gpus)) == len(gpus) else host_staged_backend.BACKEND


def _gpu(device: torch.device) -> str:
    if device.type == "cpu":
        return _NO_GPU
    return f"{provenance.machine()} {gpu_facts.uuid_of(device)}"
