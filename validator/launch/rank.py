"""A rank: one process of a run, from joining the process group to handing back its result."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from scaleproof.simulator.common.errors import one_line
from scaleproof.simulator.run.run import write_aside
from scaleproof.validator.launch import status_board as status
from scaleproof.validator.launch.job_folder import JobFolder
from scaleproof.validator.launch.rank_environment import RankEnvironment
from scaleproof.validator.launch.status_board import Board, Status
from scaleproof.validator.train import host_staged_backend

# The launcher tells a hung rank before its peers give up on it and blur whose fault it was.
_GROUP_TIMEOUT_FACTOR: Final = 3.0


@dataclass(frozen=True)
class Rank:
    """Who this process is. job: where it leaves what it records; of no use where our launcher did not start it."""

    rank: int
    ranks: int
    device: torch.device
    status: Status
    job: JobFolder


_here: list[Rank] = []


def here() -> Rank:
    """The rank that this process is. Only code that runs on a rank may ask."""
    return _here[0]


def main(path: Path, rank: int) -> int:
    """Runs the job in folder `path` as rank number `rank`; returns the exit code. What goes wrong is left in a file."""
    folder = JobFolder(path)
    _redirect_output(folder.log(rank))
    with folder.job.open("rb") as file:
        hosts, timeout_s, accelerator = pickle.load(file)  # noqa: S301 - written by our own launcher
        ranks, own_host = len(hosts), hosts[rank]
        own_status = Status(Board.open(folder.board), rank)
        own_status.enter(status.STARTING)
        try:
            if own_host.namespace is not None:
                from scaleproof.validator.netlab import namespaces

                namespaces.enter(own_host.namespace)
            if own_host.cores is not None:
                # threads that are started from here on are bound likewise
                os.sched_setaffinity(0, own_host.cores)
            os.environ["GLOO_SOCKET_IFNAME"] = own_host.interface
            device = _device(rank, accelerator)
            store = FileStore(str(folder.store), ranks)
            _init_group(device, ranks, timeout_s * _GROUP_TIMEOUT_FACTOR, store=store, rank=rank, world_size=ranks)
            _here[:] = [Rank(rank, ranks, device, own_status, folder)]
            function, args = pickle.load(file)  # noqa: S301
            own_status.enter(status.BETWEEN_PHASES)
            result = function(*args)
            own_status.enter(status.FINISHED)
            write_aside(folder.result(rank), json.dumps(result).encode())
            # a rank that leaves early looks dead to its peers; those that have left for good have their results
            with contextlib.suppress(Exception):
                dist.barrier()
            return 0
        except Exception as error:
            _tell(error, folder.error(rank))
            return 1


def join(place: RankEnvironment, store: Store, timeout_s: float, accelerator: bool) -> None:
    """Joins the process group of ranks that somebody else started. store: where they find one another."""
    device = _device(place.local_rank, accelerator)
    _init_group(device, place.local_ranks, timeout_s, store=store, rank=place.rank, world_size=place.ranks)
    own_status = Status(Board.private(), 0)
    _here[:] = [Rank(place.rank, place.ranks, device, own_status, JobFolder(Path()))]


def leave() -> None:
    """Leaves the process group that `join` joined, if it did, and with it what was trained there."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _here.clear()
    # models are in cycles with their hooks
    gc.collect()


def activity() -> str:
    """What this process is doing, in words."""
    return str(here().status.activity) if _here else "joining the others"


def exchange(own: Any) -> list[Any]:
    """What all ranks give, in rank order, on every rank. It must pickle."""
    everyones: list[Any] = [None] * here().ranks
    dist.all_gather_object(everyones, own)
    return everyones


def _device(local_rank: int, accelerator: bool) -> torch.device:
    """A GPU where one is wanted and there is any, else the CPU with one thread per rank."""
    if accelerator and torch.cuda.is_available():
        # where there are fewer than ranks of the machine, they share
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # 32 bits are 32 bits in convolutions too
        torch.backends.cudnn.allow_tf32 = False
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


def _init_group(device: torch.device, local_ranks: int, timeout_s: float, **rendezvous: Any) -> None:
    """local_ranks: of this machine. NCCL has one rank to a GPU."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl" if torch.cuda.device_count() >= local_ranks else host_staged_backend.BACKEND
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **rendezvous)


def _redirect_output(path: Path) -> None:
    """Sends what the rank prints, C++ warnings included, to its log."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _tell(error: Exception, path: Path) -> None:
    """Leaves an error for the launcher: its last line, whether it is a peer's fault, and when it was raised."""
    at_s = time.monotonic()
    traceback.print_exc()
    sys.stderr.flush()
    told = {"text": one_line(error), "at_s": at_s, "communication": is_communication(error)}
    write_aside(path, json.dumps(told).encode())


def is_communication(error: BaseException) -> bool:
    """Whether an error says that a peer could not be reached, which is that peer's fault rather than this rank's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, dist.DistError | ConnectionError) or any(word in str(seen).lower() for word in ("gloo", "nccl")):
            return True
        seen = seen.__cause__
    return False
