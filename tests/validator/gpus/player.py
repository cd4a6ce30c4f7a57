"""Plays the ranks of a scenario on GPUs that do not exist, one process each, by the validator's own training."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.scenario.schema import Scenario
from tests.validator.gpus.kernels import Kernel
from tests.validator.gpus.published import FAILED

if TYPE_CHECKING:
    from scaleproof.validator.capture.playing.rank_device import RankDevice
    from tests.validator.gpus.fake_nccl import LoggedApi

Fault = Callable[[int], None]
# Stream and phase of spans in the last step.
Phases = Counter[tuple[int, int]]
_LIMIT_S: Final = 120.0
servers: Final = multiprocessing.get_context("forkserver")
servers.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.pipelining", "torch.distributed.fsdp", "torch.nn.parallel",
     "scaleproof.validator.strategy.train", "scaleproof.validator.strategy.hybrid.trainer",
     "scaleproof.validator.strategy.parameter_server.trainer", "scaleproof.validator.capture.playing.rank_device",
     "tests.validator.gpus.fake_nccl"]
)  # fmt: skip


class PlayedRank(NamedTuple):
    """A rank that was played. error: why it failed, with the last lines that led there. backend: that it chose. built_bytes:
    most memory that was allocated before the first step."""

    kernels: tuple[Kernel, ...]
    phases: Phases
    error: str
    backend: str = ""
    built_bytes: int = 0


class Job(NamedTuple):
    """What is played. fault: called on each rank, with its number, before it trains. staged: whether futures are completed by
    threads of the backend, as gloo's are. patience_s: as of `Published`. visible: number of
    GPUs that each rank sees; as many as ranks if None."""

    scenario: Scenario
    fault: Fault | None = None
    staged: bool = False
    patience_s: float = 60.0
    visible: int | None = None


def play(job: Job, folder: Path) -> list[PlayedRank]:
    """Plays all ranks of a job at once; folder: for their files."""
    ranks = range(job.scenario.strategy.ranks)
    processes = [servers.Process(target=_play_rank, args=(job, rank, folder), daemon=True) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_LIMIT_S)
        if process.is_alive():
            process.kill()
    return [_read(folder / f"played-{rank}.pickle", folder / f"log-{rank}.txt") for rank in ranks]


def _read(path: Path, log: Path) -> PlayedRank:
    if not path.exists():
        return PlayedRank((), Counter(), f"ended or hung:\n{log.read_text() if log.exists() else ''}")
    played = pickle.loads(path.read_bytes())
    assert isinstance(played, PlayedRank)
    return played


def _play_rank(job: Job, rank: int, folder: Path) -> None:
    log = (folder / f"log-{rank}.txt").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.dump_traceback_later(_LIMIT_S / 2, exit=True, file=log)
    path = folder / f"played-{rank}.pickle"
    try:
        played = _played(job, rank, folder)
    except BaseException as error:
        (folder / FAILED).touch()
        traceback.print_exc()
        lines = traceback.format_list(traceback.extract_tb(error.__traceback__)[-4:])
        played = PlayedRank((), Counter(), f"{type(error).__name__}: {error}\n{''.join(lines)}")
    path.with_suffix(".part").write_bytes(pickle.dumps(played))
    path.with_suffix(".part").replace(path)
    # threads that wait for messages do not end
    os._exit(0)


def joined(job: Job, rank: int, folder: Path) -> tuple[RankDevice, type[LoggedApi]]:
    """The GPU of this process, which becomes a rank of the job, and the log of its calls of NCCL."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from scaleproof.validator.capture.context import ScriptContext
    from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
    from scaleproof.validator.capture.playing import rank_device
    from scaleproof.validator.kernels.devices import shipped
    from scaleproof.validator.launch import rank as ranks
    from scaleproof.validator.launch.rank_environment import RankEnvironment
    from tests.validator.gpus.fake_nccl import LoggedApi, NcclLog
    from tests.validator.gpus.published import Published
    from tests.validator.gpus.waits import Futures, Waits, check_devices, follow_threads

    world = job.scenario.strategy.ranks
    waits = Waits(ScriptContext(folder))
    futures = Futures(waits, in_another_thread if job.staged else lambda call: call())
    LoggedApi.log = NcclLog(rank, waits, futures, Published(folder, rank, world, job.patience_s))
    gpu = shipped("h100-80gb-sxm")
    assert gpu is not None
    properties = DeviceProperties.of(gpu)
    # how long calls take is not what is played
    rank_device._calibrate = lambda host: host.ignore_collections()
    device = rank_device.RankDevice(
        CaptureJob(Script(""), world, job.visible or world, properties, 1, "balanced"), rank, folder, waits, LoggedApi
    )
    device.install()
    futures.install()
    follow_threads(waits)
    check_devices(device.local)
    if job.fault is not None:
        job.fault(rank)
    store = FileStore(str(folder / "store"), world)
    ranks.join(RankEnvironment(rank, world, rank, world), store, 60.0, accelerator=True)
    return device, LoggedApi


def _played(job: Job, rank: int, folder: Path) -> PlayedRank:
    import torch

    from scaleproof.validator.strategy.train import train

    device, api = joined(job, rank, folder)
    built_bytes: list[int] = []
    cuda: Any = torch.cuda
    reset = cuda.reset_peak_memory_stats

    def reset_peak(_: Any) -> None:
        built_bytes.append(device.arena.peak_bytes)
        reset()

    cuda.reset_peak_memory_stats = reset_peak
    spans: list[bytes] = []
    train(job.scenario, spans.append, None)
    return PlayedRank(tuple(api.log.kernels), phases_of(b"".join(spans)), "", api.backend, built_bytes[0])


def phases_of(recorded: bytes) -> Phases:
    """How often each stream has each phase in the last step."""
    from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN

    rows = np.frombuffer(recorded, RAW_SPAN)
    last = rows[(rows["step"] == rows["step"].max()) & (rows["phase"] != END_OF_STEP)]
    return Counter(zip(last["stream"].tolist(), last["phase"].tolist(), strict=True))


def in_another_thread(call: Callable[[], Any]) -> Any:
    """Runs a callback as backends without CUDA do: in a thread of theirs, whose device is the first one."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def phases_on_gloo(scenario: Scenario) -> dict[str, int]:
    """Phases of a scenario trained on this rank's CPU; run on ranks by `validator.launch`."""
    from scaleproof.validator.strategy.train import train

    spans: list[bytes] = []
    train(scenario, spans.append, None)
    return {f"{stream} {phase}": count for (stream, phase), count in phases_of(b"".join(spans)).items()}
