"""Launches one process per rank on this machine, and watches them until all have returned or one has failed."""

from __future__ import annotations

import importlib.util
import json
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import MissingDependencyError, RankError
from scaleproof.validator.launch import fork_server
from scaleproof.validator.launch.fork_server import Exit, ForkServer
from scaleproof.validator.launch.hosts import Host, here
from scaleproof.validator.launch.job_folder import JobFolder
from scaleproof.validator.launch.preflight import memory_check
from scaleproof.validator.launch.status_board import NO_STEP, Board

_POLL_S: Final = 0.05
# After a failure, time in which its cause may be reported, as a victim may have failed first.
_GRACE_S: Final = 0.5
_KILL_S: Final = 10.0


def run_on_ranks(
    function: Callable[..., Any], ranks: int, *args: Any, timeout_s: float = 60.0, accelerator: bool = False
) -> list[Any]:
    """Calls `function(*args)` in `ranks` processes of this machine that share a torch.distributed process group.

    `function` must be importable by its module and name, its arguments must pickle, and its result must be plain data for JSON;
    it can get its rank from torch.distributed.get_rank(). Processes compute on one CPU thread each and communicate by gloo;
    with `accelerator` and enough GPUs on one GPU each, by nccl. timeout_s: seconds without reported progress after which a rank
    counts as hung; a plain function reports none. Returns the results in rank order. Raises RankError naming the rank that
    failed first, and MissingDependencyError without torch.
    """
    with job_folder() as folder:
        return launch(folder, function, ranks, args, timeout_s=timeout_s, accelerator=accelerator)


def require_torch() -> None:
    """Raises MissingDependencyError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("measuring needs torch; pip install 'scaleproof[validator]'")


@contextmanager
def job_folder() -> Iterator[JobFolder]:
    """A temporary folder for one job."""
    # the server removes the folder if this process is killed
    fork_server.shared()
    with tempfile.TemporaryDirectory(prefix=fork_server.folder_prefix()) as path:
        yield JobFolder(Path(path))


def launch(
    folder: JobFolder,
    function: Callable[..., Any],
    ranks: int,
    args: tuple[Any, ...],
    *,
    timeout_s: float,
    accelerator: bool,
    hosts: Sequence[Host] = (),
    names: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> list[Any]:
    """Calls `function` like `run_on_ranks`, in a folder of the caller, where files of ranks remain after an error.

    hosts: of each rank, this machine's loopback interface if empty. names: of ranks, for error messages. progress: called with
    the step of the slowest rank when it changes.
    """
    require_torch()
    if function.__module__ == "__main__":
        raise ValueError(f"{function.__name__} is in the main script, which ranks do not import; move it to a module")
    # settings come first, so that a rank can report an error in unpickling the function
    folder.job.write_bytes(pickle.dumps((hosts or here(ranks), timeout_s, accelerator)) + pickle.dumps((function, args)))
    server = fork_server.shared()
    with server.lock:
        server.wait_until_ready()
        board = Board.create(folder.board, ranks)
        try:
            _WatchedJob(server, board, folder, ranks, timeout_s, names, progress).run()
        finally:
            board.close()
    return [json.loads(folder.result(rank).read_bytes()) for rank in range(ranks)]


class _WatchedJob:
    """One job, watched from start to end."""

    def __init__(
        self,
        server: ForkServer,
        board: Board,
        folder: JobFolder,
        ranks: int,
        timeout_s: float,
        names: Sequence[str],
        progress: Callable[[int], None] | None,
    ) -> None:
        self.server = server
        self.board = board
        self.folder = folder
        self.ranks = ranks
        self.running = set(range(ranks))
        self.timeout_s = timeout_s
        self.names = names
        self.progress = progress
        self.step: int = NO_STEP
        self.ended_for_memory = memory_check.ended_for_memory()

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
                return self._describe(hung, f"made no progress for {self.timeout_s:g} s in", "")
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
                self.server.kill()
            until_s = time.monotonic() + _KILL_S
            while self.running and (left_s := until_s - time.monotonic()) > 0:
                self._failed(left_s)
        except BaseException:
            self.running.clear()
            self.server.close()
            raise

    def _report_progress(self) -> None:
        step = min(self.board.read(rank).step for rank in range(self.ranks))
        if self.progress is not None and step != self.step:
            self.step = step
            self.progress(step)

    def _hung(self) -> int | None:
        """The hung rank: one whose own work makes no progress for the timeout, or the first to stop if all wait; else None."""
        stale_s = time.monotonic() - self.timeout_s
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
            return (2 if error["communication"] else 1, error["at_s"])

        end = min(failed, key=blame_order)
        error = errors[end.rank]
        if error is not None:
            return self._describe(end.rank, "failed in", f": {error['text']}")
        how = f"was killed by signal {-end.code} in" if end.code < 0 else f"exited with code {end.code} in"
        return self._describe(end.rank, how, self._lack_of_memory() if end.code == -signal.SIGKILL else "")

    def _lack_of_memory(self) -> str:
        """Reason for a killed rank if the kernel has killed a process for lack of memory during the job; else empty."""
        if memory_check.ended_for_memory() == self.ended_for_memory:
            return ""
        return ": probably out of memory; give fewer ranks or a smaller model"

    def _error(self, rank: int) -> dict[str, Any] | None:
        """The error that a rank has written, if any."""
        path = self.folder.error(rank)
        return json.loads(path.read_bytes()) if path.exists() else None

    def _describe(self, rank: int, what: str, why: str) -> str:
        name = f" ({self.names[rank]})" if self.names else ""
        return f"rank {rank}{name} {what} {self.board.read(rank)}{why}"
