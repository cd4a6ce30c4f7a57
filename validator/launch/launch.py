"""Runs a function on ranks: on processes that are started on this machine, or on those that another launcher has started.

Processes of this machine are watched until all have returned or one has failed; none runs after that.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from scaleproof.simulator.common.errors import MissingDependencyError, RankError
from scaleproof.validator.launch import fork_server
from scaleproof.validator.launch.fork_server import Exit, ForkServer
from scaleproof.validator.launch.job import Host, JobFolder
from scaleproof.validator.record.status_board import NO_STEP, Board

T = TypeVar("T")

_POLL_S: Final = 0.05
# After a failure, time in which its cause may be reported, as a victim may have failed first.
_GRACE_S: Final = 0.5
# Killed ranks end at once, but the kernel frees a GPU's memory and pinned memory of the host first.
_KILL_S: Final = 10.0
_KILL_ON_GPUS_S: Final = 60.0
# Counts the events of the kernel's memory management.
_EVENTS: Final = Path("/proc/vmstat")


class RankResult(NamedTuple):
    """What a rank leaves: the result of its function, and the bytes that it has recorded meanwhile."""

    result: Any
    recorded: bytes


@dataclass(frozen=True)
class JobOptions:
    """How a function runs on ranks.

    timeout_s: seconds without reported progress after which a rank counts as hung; a plain function reports none. accelerator:
    whether ranks compute on GPUs if there are any. names: of ranks, for error messages. progress: called with the step of the
    slowest rank when it changes. keep: called after a failure with the bytes that each rank has recorded and the paths of the
    ranks' logs; returns a text for the error message.
    """

    timeout_s: float = 60.0
    accelerator: bool = False
    names: Sequence[str] = ()
    progress: Callable[[int], None] | None = None
    keep: Callable[[Sequence[bytes], Sequence[Path]], str] | None = None


class Ranks(Protocol):
    """Ranks that run functions: `LocalRanks` are started for each function, `ExternalRanks` by another launcher."""

    def first(self, count: int) -> Ranks:
        """The first `count` of the ranks."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        """Calls `function(*args)` on all ranks, which form a torch.distributed process group; returns what each has left.

        Raises RankError naming the rank that failed first, or hung.
        """

    def once(self, function: Callable[[], T], patience_s: float) -> T:
        """Calls `function` in one process, for up to `patience_s` seconds; returns its result wherever ranks are run."""


def run_on_ranks(
    function: Callable[..., Any], where: int | Ranks, *args: Any, timeout_s: float = 60.0, accelerator: bool = False
) -> list[Any]:
    """Calls `function(*args)` on ranks that share a torch.distributed process group.

    where: the ranks, or a number of processes to start on this machine. `function` must be importable by its module and name,
    its arguments must pickle, and its result must be plain data for JSON; its rank is torch.distributed.get_rank(). Processes
    compute on one CPU thread each and communicate by gloo; with `accelerator` and enough GPUs on one GPU each, by nccl.
    timeout_s: seconds without reported progress after which a rank counts as hung; a plain function reports none. Returns the
    results in rank order. Raises RankError naming the rank that failed first, and MissingDependencyError without torch.
    """
    ranks = LocalRanks([Host()] * where) if isinstance(where, int) else where
    return [ended.result for ended in ranks.run(function, args, JobOptions(timeout_s, accelerator))]


def require_torch() -> None:
    """Raises MissingDependencyError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("measuring needs torch; pip install 'scaleproof[validator]'")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder, which is removed even if this process is killed."""
    # the server does that
    fork_server.shared()
    with tempfile.TemporaryDirectory(prefix=fork_server.folder_prefix()) as path:
        yield Path(path)


def description(rank: int, names: Sequence[str], what: str, activity: object, why: str = "") -> str:
    """The failure of a rank in one line: 'rank 1 (server 0) failed in forward of step 3: OSError'."""
    name = f" ({names[rank]})" if names else ""
    return f"rank {rank}{name} {what} {activity}{why}"


@dataclass(frozen=True)
class LocalRanks:
    """Ranks that are started on this machine for each function, each on its host, and end with it."""

    hosts: Sequence[Host]

    def first(self, count: int) -> LocalRanks:
        """Ranks on the first `count` hosts."""
        return LocalRanks(self.hosts[:count])

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        """Calls `function(*args)` in one new process per rank; see `Ranks.run`."""
        require_torch()
        if function.__module__ == "__main__":
            raise ValueError(f"{function.__name__} is in the main script, which ranks do not import; move it to a module")
        with temporary_folder() as path:
            folder, ranks = JobFolder(path), range(len(self.hosts))
            # settings come first, so that a rank can report an error in unpickling the function
            settings = (self.hosts, options.timeout_s, options.accelerator)
            folder.job.write_bytes(pickle.dumps(settings) + pickle.dumps((function, args)))

            def keep() -> str:
                recorded = [folder.recorded(rank).read_bytes() if folder.recorded(rank).exists() else b"" for rank in ranks]
                return options.keep(recorded, [folder.log(rank) for rank in ranks]) if options.keep else ""

            try:
                _run_job(folder, len(ranks), options)
            except RankError as error:
                raise RankError(f"{error}{keep()}") from None
            except KeyboardInterrupt:
                keep()
                raise
            return [
                RankResult(json.loads(folder.result(rank).read_bytes()), folder.recorded(rank).read_bytes()) for rank in ranks
            ]

    def once(self, function: Callable[[], T], patience_s: float) -> T:
        """Calls `function` in this process."""
        return function()


def _run_job(folder: JobFolder, ranks: int, options: JobOptions) -> None:
    """Starts the job in `folder`, and returns once all ranks have written their results. Raises RankError."""
    server = fork_server.shared()
    with server.lock:
        server.wait_until_ready()
        board = Board.create(folder.board, ranks)
        try:
            _WatchedJob(server, board, folder, ranks, options).run()
        finally:
            board.close()


class _WatchedJob:
    """One job, watched from start to end."""

    def __init__(self, server: ForkServer, board: Board, folder: JobFolder, ranks: int, options: JobOptions) -> None:
        self.server = server
        self.board = board
        self.folder = folder
        self.ranks = ranks
        self.running = set(range(ranks))
        self.options = options
        self.step: int = NO_STEP
        self.ended_for_memory = ended_for_memory()

    def run(self) -> None:
        """Returns once all ranks have written their results. Raises RankError. No rank runs after that either way."""
        try:
            self.server.start(self.folder.path, self.ranks)
            failure = self._first_failure()
        finally:
            self._end()
        if failure is not None:
            raise RankError(failure)

    def _first_failure(self) -> str | None:
        """Watches until all ranks have succeeded (None) or one has failed; returns a description of the failure."""
        while self.running:
            failed = self._failed(_POLL_S)
            if failed:
                until_s = time.monotonic() + _GRACE_S
                while self.running and (left_s := until_s - time.monotonic()) > 0:
                    failed += self._failed(left_s)
                return self._describe_death(failed)
            self._report_progress()
            hung = self._hung()
            if hung is not None:
                return self._describe(hung, f"made no progress for {self.options.timeout_s:g} s in")
        return None

    def _failed(self, timeout_s: float) -> list[Exit]:
        """Ranks that ended without a result, once any has ended or the timeout has passed."""
        exits = self.server.exits(timeout_s)
        self.running -= {end.rank for end in exits}
        return [end for end in exits if end.code != 0 or not self.folder.result(end.rank).exists()]

    def _end(self) -> None:
        """Ends ranks that still run and waits for their exits, so that the next job does not receive them."""
        try:
            if self.running:
                self.server.kill_ranks()
            until_s = time.monotonic() + (_KILL_ON_GPUS_S if self.options.accelerator else _KILL_S)
            while self.running and (left_s := until_s - time.monotonic()) > 0:
                self._failed(left_s)
        except BaseException:
            self.running.clear()
            self.server.close()
            raise

    def _report_progress(self) -> None:
        step = min(self.board.read(rank).step for rank in range(self.ranks))
        if self.options.progress is not None and step != self.step:
            self.step = step
            self.options.progress(step)

    def _hung(self) -> int | None:
        """The hung rank: one whose own work makes no progress for the timeout, or the first to stop if all wait; else None."""
        stale_s = time.monotonic() - self.options.timeout_s
        activities = {rank: self.board.read(rank) for rank in self.running}
        busy = {rank: a for rank, a in activities.items() if not a.waits_for_others}
        if not activities or not (
            any(a.since_s < stale_s for a in busy.values()) or all(a.since_s < stale_s for a in activities.values())
        ):
            return None
        suspects = busy or activities
        return min(suspects, key=lambda rank: suspects[rank].since_s)

    def _describe_death(self, failed: list[Exit]) -> str:
        """Blames the cause rather than its victims: a rank ended from outside, then the first error of its own."""
        errors = {end.rank: self._error(end.rank) for end in failed}

        def blame_order(end: Exit) -> tuple[int, float]:
            error = errors[end.rank]
            if error is None:
                return (0, 0.0)
            return (2 if error["by_peer"] else 1, error["at_s"])

        end = min(failed, key=blame_order)
        error = errors[end.rank]
        if error is not None:
            return self._describe(end.rank, "failed in", f": {error['text']}")
        how = f"was killed by signal {-end.code} in" if end.code < 0 else f"exited with code {end.code} in"
        return self._describe(end.rank, how, self._lack_of_memory() if end.code == -signal.SIGKILL else "")

    def _lack_of_memory(self) -> str:
        """Reason for a killed rank if the kernel has killed a process for lack of memory during the job; else empty."""
        if ended_for_memory() == self.ended_for_memory:
            return ""
        return ": probably out of memory; give fewer ranks or a smaller model"

    def _error(self, rank: int) -> dict[str, Any] | None:
        """The error that a rank has written, if any."""
        path = self.folder.error(rank)
        return json.loads(path.read_bytes()) if path.exists() else None

    def _describe(self, rank: int, what: str, why: str = "") -> str:
        return description(rank, self.options.names, what, self.board.read(rank), why)


def ended_for_memory() -> int:
    """Number of processes that this machine's kernel has killed so far for lack of memory; 0 if it does not report it."""
    lines = _EVENTS.read_text().splitlines() if _EVENTS.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
