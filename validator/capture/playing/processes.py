"""Starts players of ranks, each in a process of its own, and ends them all when one fails, time is up, or on Ctrl-C.

A server imports torch once and forks players. It ends with its launcher, and players end with the server; each is the leader of
a process group, so that what a script starts ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.communication.mailbox import requested
from scaleproof.validator.capture.job import CaptureJob
from scaleproof.validator.capture.playing.places import REQUEST, ReportedPlace, forget, hold_requests, read_places
from scaleproof.validator.launch.child import Child, end_with, line
from scaleproof.validator.launch.fork_server import Exit

JOB: Final = "job.pickle"
LOG: Final = "log-{}.txt"
RESOURCES: Final = "resources-{}.json"
_POLL_S: Final = 0.02
# Time in which ranks report where they are, and time between two reports.
_REPORT_S: Final = 0.5
_BETWEEN_REPORTS_S: Final = 20.0
# Time between two looks at the processor time of ranks, and that after which ranks that communicate wait for ever if they use
# less than a share of a core each.
_BETWEEN_LOOKS_S, _IDLE_S, _IDLE_SHARE = 5.0, 25.0, 0.05
# Loaded once, before players are forked; most scripts need them.
_PRELOAD: Final = (
    "torch", "torch._dynamo", "torch._meta_registrations", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel", "torch.nn.parallel", "torch.utils.data", "scaleproof.validator.capture.playing.player",
)  # fmt: skip


class AllWaitError(Exception):
    """All ranks that run wait, and nothing that is played ends that."""


class Players:
    """Plays ranks. folder: where they write; deadline_s: of `time.monotonic`, when all are ended. concurrent: players that run
    at once, in addition to those that others wait for. progress: called with what is going on. job: of the ranks."""

    def __init__(
        self, folder: Path, deadline_s: float, concurrent: int, progress: Callable[[str], None], job: CaptureJob
    ) -> None:
        self._folder, self._deadline_s, self._concurrent, self._progress = folder, deadline_s, concurrent, progress
        self._job = job
        self._server = Child(serve, str(folder))
        self._started: set[int] = set()
        self._ended: dict[int, int] = {}

    def close(self) -> None:
        """Ends all players and the server."""
        self._server.send({"kill": True})
        self._server.close()

    def play(self, ranks: Iterable[int]) -> int | None:
        """Plays ranks that have not been played, and those that they wait for. Returns the rank that failed first, if any.

        Raises TimeoutError when time is up, AllWaitError where ranks wait for ever.
        """
        waiting = [rank for rank in dict.fromkeys(ranks) if rank not in self._started]
        report_s = time.monotonic() + _BETWEEN_REPORTS_S
        look_s, used_s, idle_s = time.monotonic() + _BETWEEN_LOOKS_S, 0.0, 0.0
        while True:
            running = len(self._started) - len(self._ended)
            needed = sorted(requested(self._folder) - self._started)
            room = max(0, self._concurrent - running)
            for rank in (*needed, *waiting[:room]):
                self._start(rank)
            waiting = [rank for rank in waiting if rank not in self._started]
            if self._started == set(self._ended) and not waiting:
                return None
            if time.monotonic() > self._deadline_s:
                raise TimeoutError
            if time.monotonic() > report_s:
                for place in self.places():
                    self._progress(place.text(self._job.script.target, self._job.steps))
                report_s = time.monotonic() + _BETWEEN_REPORTS_S
            if time.monotonic() > look_s:
                before_s, used_s, look_s = used_s, _used_s(self._server.pid), time.monotonic() + _BETWEEN_LOOKS_S
                is_idle = 0 <= used_s - before_s < _IDLE_SHARE * _BETWEEN_LOOKS_S * max(1, running)
                idle_s = idle_s + _BETWEEN_LOOKS_S if is_idle and running else 0.0
                places = self.places() if idle_s >= _IDLE_S else []
                # what a script sleeps, downloads or lets other programs do ends some time
                if places and all(place.communicates for place in places):
                    raise AllWaitError
            for rank, code in map(Exit._make, self._exits()):
                self._ended[rank] = code
                if code:
                    return rank

    def code(self, rank: int) -> int:
        """The exit code of a rank that has ended, −n after signal n."""
        return self._ended[rank]

    def places(self) -> list[ReportedPlace]:
        """Where the scripts of the ranks that still run are."""
        forget(self._folder)
        self._server.send({"where": True})
        time.sleep(_REPORT_S)
        return [place for place in read_places(self._folder) if place.rank not in self._ended]

    def _start(self, rank: int) -> None:
        self._started.add(rank)
        self._server.send({"rank": rank, "cwd": os.getcwd()})
        self._progress(f"playing rank {rank}")

    def _exits(self) -> list[Any]:
        try:
            return self._server.receive(_POLL_S)
        except ConnectionError:
            raise RunError(f"ranks cannot be played: {self._server.why() or 'their server was ended'}") from None


def _used_s(server: int) -> float:
    """Processor seconds of a server, of all its players, and of the processes that their scripts have started."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    # state, parent, group, session, …, and times of the process and of its children from the twelfth field
    sessions = {server, *(pid for pid, fields in found.items() if int(fields[1]) == server)}
    used = sum(sum(map(int, fields[11:15])) for fields in found.values() if int(fields[3]) in sessions)
    return used / os.sysconf("SC_CLK_TCK")


def serve(descriptor: int, folder: str) -> None:
    """Runs the server, until its socket closes."""
    import importlib

    from scaleproof.validator.capture.compiled.regions import prepare_compiler
    from scaleproof.validator.capture.packages.torchvision import declare_vision

    for module in _PRELOAD:
        importlib.import_module(module)
    prepare_compiler()
    declare_vision()
    os.set_inheritable(descriptor, False)
    _Server(socket.socket(fileno=descriptor), Path(folder)).run()
    os._exit(0)


class _Server:
    """The server's side."""

    def __init__(self, control: socket.socket, folder: Path) -> None:
        self._control, self._folder, self._pid = control, folder, os.getpid()
        self._ranks: dict[int, int] = {}
        self._is_closed = False

    def run(self) -> None:
        buffer = b""
        hold_requests()
        self._control.settimeout(_POLL_S)
        while True:
            self._reap()
            try:
                received = self._control.recv(65536)
            except TimeoutError:
                continue
            if not received:
                self._kill()
                if not self._is_closed:
                    # the launcher was killed, and leaves it
                    shutil.rmtree(self._folder, ignore_errors=True)
                return
            *lines, buffer = (buffer + received).split(b"\n")
            for text in lines:
                self._obey(json.loads(text))

    def _obey(self, message: dict[str, Any]) -> None:
        if "where" in message:
            for pid in self._ranks:
                os.kill(pid, REQUEST)
            return
        if "kill" in message:
            self._is_closed = True
            self._kill()
            return
        os.chdir(message["cwd"])
        pid = os.fork()
        if pid == 0:
            self._become(message["rank"])
        self._ranks[pid] = message["rank"]

    def _become(self, rank: int) -> None:
        """Plays a rank in a forked process; never returns."""
        try:
            os.setsid()
            end_with(self._pid)
            self._control.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with (self._folder / LOG.format(rank)).open("wb", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            from scaleproof.validator.capture.playing.player import play

            play(pickle.loads((self._folder / JOB).read_bytes()), rank, self._folder)  # noqa: S301 - written by this capture
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(1)

    def _reap(self) -> None:
        while self._ranks:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid)
            _end_group(pid)
            measured = {"memory_bytes": used.ru_maxrss * 1024, "cpu_s": used.ru_utime + used.ru_stime}
            (self._folder / RESOURCES.format(rank)).write_text(json.dumps(measured))
            # a launcher that has ended closes its socket next
            with contextlib.suppress(OSError):
                self._control.sendall(line([rank, os.waitstatus_to_exitcode(status)]))

    def _kill(self) -> None:
        for pid in self._ranks:
            _end_group(pid)
        for pid in self._ranks:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._ranks.clear()


def _end_group(pid: int) -> None:
    """Ends a player, and the processes that its script has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
