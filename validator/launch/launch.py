"""Launching: one process per rank on this machine, watched until all have returned or the first has failed."""

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
# After a failure: time for its cause to show, where a victim told first.
_GRACE_S: Final = 0.5
_KILL_S: Final = 10.0


def run_on_ranks(
    function: Callable[..., Any], ranks: int, *args: Any, timeout_s: float = 60.0, accelerator: bool = False
) -> list[Any]:
    """Calls `function(*args)` on `ranks` processes of this machine that share a torch.distributed process group.

    `function` must be importable by its module and name, its arguments must pickle, and what it returns must be plain data
    for JSON; it learns its rank from torch.distributed.get_rank(). Processes compute on one CPU thread each over gloo, on a
    GPU each over nccl where `accelerator` is asked for and there are enough. timeout_s: seconds that a rank may stay
    without telling progress, which a plain function never does. Returns the results in rank order. Raises RankError naming
    the rank that failed first, and MissingDependencyError without torch.
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
    # removes the folder where this process cannot, from before there is one
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
    """`run_on_ranks` in a folder of the caller's, where everything that ranks leave can be found also after an error.

    hosts: where each rank runs, on this machine's loopback interface if not given. names: what messages call each rank.
    progress: called with the step that the slowest rank is in, when it changes.
    """
    require_torch()
    if function.__module__ == "__main__":
        raise ValueError(f"{function.__name__} stands in the main script, which ranks do not import; move it to a module")
    # what a rank needs to start comes first, so that an error in unpickling the rest is told like any other
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
    """One job from start to end."""

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
        """Returns once all ranks have left their results. Raises RankError. No rank is left running either way."""
        try:
            self.server.start(self.folder.path, self.ranks)
            failure = self._first_failure()
        finally:
            self._end()
        if failure is not None:
            raise RankError(failure)

    def _first_failure(self) -> str | None:
        """Watches until all ranks have ended well (None) or one has failed: what happened to which, in words."""
        while self.running:
            failed = self._failed(_POLL_S)
            if failed:
                until_s = time.monotonic() + _GRACE_S
                while self.running and (left_s := until_s - time.monotonic()) > 0:
                    failed += self._failed(left_s)
                return self._describe_death(failed)
            self._tell_progress()
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
        """Ends what still runs, and takes note of it so that the next job starts clean."""
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

    def _tell_progress(self) -> None:
        step = min(self.board.read(rank).step for rank in range(self.ranks))
        if self.progress is not None and step != self.step:
            self.step = step
            self.progress(step)

    def _hung(self) -> int | None:
        """The rank to blame where one works on and on, or where nobody has got on for the timeout."""
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
        told = {end.rank: self._told(end.rank) for end in failed}

        def guilt(end: Exit) -> tuple[int, float]:
            error = told[end.rank]
            if error is None:
                return (0, 0.0)
            return (2 if error["communication"] else 1, error["at_s"])

        end = min(failed, key=guilt)
        error = told[end.rank]
        if error is not None:
            return self._describe(end.rank, "failed in", f": {error['text']}")
        how = f"was killed by signal {-end.code} in" if end.code < 0 else f"exited with code {end.code} in"
        return self._describe(end.rank, how, self._lack_of_memory() if end.code == -signal.SIGKILL else "")

    def _lack_of_memory(self) -> str:
        """Why a rank was killed, where the kernel has killed something meanwhile to have memory again."""
        if memory_check.ended_for_memory() == self.ended_for_memory:
            return ""
        return ": probably out of memory; give fewer ranks or a smaller model"

    def _told(self, rank: int) -> dict[str, Any] | None:
        """The error that a rank left behind, if it had the time to."""
        path = self.folder.error(rank)
        return json.loads(path.read_bytes()) if path.exists() else None

    def _describe(self, rank: int, what: str, why: str) -> str:
        name = f" ({self.names[rank]})" if self.names else ""
        return f"rank {rank}{name} {what} {self.board.read(rank)}{why}"
