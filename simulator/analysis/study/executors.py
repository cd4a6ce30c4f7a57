"""Executors for the tasks of a sweep: this machine's cores, a dask cluster, or Slurm jobs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from scaleproof.simulator.analysis.study.slurm import slurm
from scaleproof.simulator.common.errors import InputError, MissingDependencyError, RunError

Name = Literal["local", "dask", "slurm"]
NAMES: Final[tuple[Name, ...]] = ("local", "dask", "slurm")

# timeout of connecting to a scheduler
_TIMEOUT_S: Final = 10
# Jobs of one study in a queue at a time, their points, and their run time. Jobs wait long in queues, so that each is large.
_JOBS: Final = 64
_JOB_POINTS: Final = 512
_JOB_S: Final = 1800.0
# until worker processes have started and imported this package
_START_S: Final = 1.5
# interval at which a worker process checks whether its parent is alive
_POLL_S: Final = 0.2


@dataclass
class Workers:
    """An executor for tasks, and how to use it.

    start: creates an executor, again after one has broken. count: tasks that run at the same time. deaths: exceptions of tasks
    whose worker died. start_s: seconds until the first worker starts; this process computes meanwhile. alone: points of a task
    that predicts them one by one. task_s: seconds after which a task returns what it has done.
    """

    start: Callable[[], Executor]
    count: int
    deaths: tuple[type[BaseException], ...]
    start_s: float = 0.0
    alone: int = 8
    task_s: float = 2.0


def workers(name: str, scheduler: str | None, folder: Path) -> Workers:
    """The workers of an executor's name. scheduler: address of a dask scheduler. folder: for the files of Slurm jobs.

    Raises InputError where they cannot be reached, MissingDependencyError where their package is not installed.
    """
    if scheduler is not None and name != "dask":
        raise InputError(f"--scheduler {scheduler}: needs --executor dask; give both, or leave it out")
    if name == "local":
        return _local()
    if name == "dask":
        return _dask(scheduler)
    if name == "slurm":
        return _slurm(folder)
    raise InputError(f"--executor {name}: unknown; choose from {', '.join(NAMES)}")


def _local() -> Workers:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(lambda: _processes(count), count, (BrokenExecutor,), _START_S)


def _processes(count: int) -> Executor:
    from joblib.externals.loky import ProcessPoolExecutor  # type: ignore[import-untyped]

    class Processes(ProcessPoolExecutor):  # type: ignore[misc]
        """loky's executor, which kills its workers when their tasks are cancelled."""

        def shutdown(self, wait: bool = True, kill_workers: bool = False, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait, kill_workers or cancel_futures)

    executor: Executor = Processes(count, initializer=_follow, initargs=(os.getpid(),))
    return executor


def _follow(parent: int) -> None:
    """Makes a process end when its parent does, and ignore Ctrl-C, which reaches all processes of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _dask(scheduler: str | None) -> Workers:
    if scheduler is None:
        raise InputError("--executor dask: give the address of its scheduler, such as --scheduler tcp://head:8786")
    try:
        import distributed
        from distributed.cfexecutor import ClientExecutor
    except ImportError:
        raise _missing("dask") from None

    # the package is marked as typed but is not
    untyped: Any = distributed
    base: Any = ClientExecutor

    class Cluster(base):  # type: ignore[misc]
        """dask's executor, with its own connection."""

        def __init__(self) -> None:
            self.client = untyped.Client(scheduler, timeout=_TIMEOUT_S, set_as_default=False)
            # tasks are pure functions, but dask must not reuse the result of a failed one
            super().__init__(self.client, pure=False)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=wait)
            self.client.close()

    try:
        first = Cluster()
    except (OSError, TimeoutError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--scheduler {scheduler}: no connection ({reason}); start it, or give another address") from None
    count = sum(first.client.ncores().values())
    first.shutdown()
    if count == 0:
        raise InputError(f"--scheduler {scheduler}: has no workers; start some with 'dask worker {scheduler}'")
    return Workers(Cluster, count, (untyped.KilledWorker, CancelledError))


def _slurm(folder: Path) -> Workers:
    try:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        start, limit_s = slurm(folder)
    except ImportError:
        raise _missing("slurm") from None
    except RunError as error:
        raise InputError(f"--executor slurm: {error}; run it where sbatch and squeue work") from None
    task_s = _JOB_S if limit_s is None else min(_JOB_S, limit_s / 2)
    return Workers(start, _JOBS, (UncompletedJobError, FailedJobError), alone=_JOB_POINTS, task_s=task_s)


def _missing(name: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"--executor {name}: its package is missing; install it with pip install 'scaleproof[executors]'"
    )
