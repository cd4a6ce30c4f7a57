"""A rank: one process of a run, from joining the process group to returning its result."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import one_line
from scaleproof.validator.launch.backend import agreed
from scaleproof.validator.launch.job import JobFolder
from scaleproof.validator.launch.rank_environment import RankEnvironment
from scaleproof.validator.record import status_board as status
from scaleproof.validator.record.status_board import Board, Status

# Results of NCCL's functions that the calling rank causes (nccl.h), in lower case.
_OWN_FAULTS: Final = ("ncclinvalidusage", "ncclinvalidargument", "ncclunhandledcudaerror")
# The launcher reports a hung rank before its peers time out, which would hide the cause.
_GROUP_TIMEOUT_FACTOR: Final = 3.0


@dataclass(frozen=True)
class Rank:
    """The identity of this process. record: keeps bytes for the launcher, which gets them even if the rank fails later."""

    rank: int
    ranks: int
    device: torch.device
    status: Status
    record: Callable[[bytes], Any]


_here: list[Rank] = []


def here() -> Rank:
    """The rank of this process; to be called only on a rank."""
    return _here[0]


def main(path: Path, rank: int) -> int:
    """Runs the job in folder `path` as rank number `rank`; returns the exit code. Writes an error to a file."""
    folder = JobFolder(path)
    _redirect_output(folder.log(rank))
    with folder.job.open("rb") as file, folder.recorded(rank).open("ab", buffering=0) as recorded:
        hosts, timeout_s, accelerator = pickle.load(file)  # noqa: S301 - written by our own launcher
        ranks, own_host = len(hosts), hosts[rank]
        own_status = Status(Board.open(folder.board), rank)
        own_status.enter(status.STARTING)
        try:
            if own_host.namespace is not None:
                from scaleproof.validator.launch import namespaces

                namespaces.enter(own_host.namespace)
            if own_host.cores is not None:
                # threads that are started later inherit this
                os.sched_setaffinity(0, own_host.cores)
            os.environ["GLOO_SOCKET_IFNAME"] = own_host.interface
            place, store = RankEnvironment(rank, ranks, rank, ranks), FileStore(str(folder.store), ranks)
            join(place, store, timeout_s * _GROUP_TIMEOUT_FACTOR, accelerator, recorded.write, own_status)
            function, args = pickle.load(file)  # noqa: S301
            own_status.enter(status.BETWEEN_PHASES)
            result = function(*args)
            own_status.enter(status.FINISHED)
            write_atomically(folder.result(rank), json.dumps(result).encode())
            # a rank that leaves early looks dead to its peers; those that have ended have their results
            with contextlib.suppress(Exception):
                barrier()
            return 0
        except Exception as error:
            fields = failure(error)
            traceback.print_exc()
            sys.stderr.flush()
            write_atomically(folder.error(rank), json.dumps(fields).encode())
            return 1


def join(
    place: RankEnvironment,
    store: Store,
    timeout_s: float,
    accelerator: bool = False,
    record: Callable[[bytes], Any] = lambda _: None,
    own_status: Status | None = None,
) -> None:
    """Joins the process group. store: by which the group is formed. own_status: None if nobody watches this process."""
    device, timeout = _device(place.local_rank, accelerator), timedelta(seconds=timeout_s)
    backend = agreed(place, store, device, timeout) if accelerator else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=place.rank, world_size=place.ranks)
    _here[:] = [Rank(place.rank, place.ranks, device, own_status or Status(Board.private(), 0), record)]


def leave() -> None:
    """Leaves the process group of `join`, if it succeeded, and frees the trained model."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _here.clear()
    # models and their hooks form reference cycles
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # NCCL of the next scenario allocates outside of torch's cache
        torch.cuda.empty_cache()


def barrier() -> None:
    """Waits until all ranks are here."""
    device = here().device
    # NCCL would guess the GPU
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def exchange(own: Any) -> list[Any]:
    """All-gather of picklable objects, in rank order."""
    everyones: list[Any] = [None] * here().ranks
    dist.all_gather_object(everyones, own)
    return everyones


def _device(local_rank: int, accelerator: bool) -> torch.device:
    """A GPU if requested and available, else the CPU with one thread per rank."""
    if accelerator and torch.cuda.is_available():
        # ranks share GPUs if the machine has fewer GPUs than ranks
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # fp32 means fp32 in convolutions too
        torch.backends.cudnn.allow_tf32 = False
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


def _redirect_output(path: Path) -> None:
    """Redirects the rank's output, warnings of C++ code included, to its log."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def failure(error: Exception) -> dict[str, Any]:
    """An error of this rank as data: its last line, whether a peer caused it, when it was raised, and in which activity."""
    activity = str(here().status.activity) if _here else "joining the others"
    return {"text": one_line(error), "by_peer": is_communication(error), "at_s": time.monotonic(), "activity": activity}


def is_communication(error: BaseException) -> bool:
    """Whether an error or one of its causes is a failed communication, caused by a peer rather than by this rank."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if any(word in text for word in _OWN_FAULTS):
            return False
        if isinstance(cause, dist.DistError | ConnectionError) or any(word in text for word in ("gloo", "nccl")):
            return True
        cause = cause.__cause__
    return False
