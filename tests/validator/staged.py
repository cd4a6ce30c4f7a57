"""Functions that ranks run in tests of staging; a separate module so that ranks can import it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import host_staged_backend
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here

# torch before 2.13 has the old names alone, from 2.13 on those warn
_ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def exchange_all() -> dict[str, Any]:
    """What each collective and a message leave on this rank, of ranks that begin with their number."""
    group, me, ranks = dist.new_group(backend=host_staged_backend.BACKEND), dist.get_rank(), dist.get_world_size()
    summed, reported, received = torch.full((3,), float(me)), torch.full((3,), float(me)), torch.zeros(3)
    gathered = [torch.zeros(1) for _ in range(ranks)]
    future = dist.all_reduce(summed, group=group, async_op=True).get_future().then(lambda done: done.value()[0].clone())
    dist.broadcast(reported, 1, group=group)
    dist.all_gather(gathered, torch.tensor([float(me)]), group=group)
    arriving = dist.irecv(received, (me - 1) % ranks, group=group)
    leaving = dist.isend(torch.full((3,), float(me)), (me + 1) % ranks, group=group)
    for work in (leaving, arriving):
        assert work is not None
        work.wait()
    dist.barrier(group=group)
    reduced, single, scattered, exchanged = torch.full((3,), float(me)), *(torch.zeros(size) for size in (ranks, 1, ranks))
    dist.reduce(reduced, 1, group=group)
    every = torch.arange(float(ranks))
    for work in (
        _ALL_GATHER(single, torch.tensor([float(me)]), group=group, async_op=True),
        _REDUCE_SCATTER(scattered, every, group=group, async_op=True),
    ):
        work.get_future().wait()
    dist.all_to_all_single(exchanged, every + 10 * me, group=group)
    return {
        "summed": future.wait().tolist(),
        "in place": summed.tolist(),
        "broadcast": reported.tolist(),
        "gathered": [float(part) for part in gathered],
        "received": received.tolist(),
        "reduced": reduced.tolist(),
        "single": single.tolist(),
        "scattered": scattered.tolist(),
        "exchanged": exchanged.tolist(),
        "backend": dist.get_backend(group),
    }


def train_staged(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """`train_here` in a staged group of the same ranks."""
    me = here()
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    dist.destroy_process_group()
    store = FileStore(str(Path(folder[0]) / "staged"), me.ranks)
    dist.init_process_group(
        host_staged_backend.BACKEND, store=store, rank=me.rank, world_size=me.ranks, timeout=timedelta(seconds=60)
    )
    return train_here(scenario, parameters_folder)
