"""The fork server: imports torch once, then forks ranks in milliseconds.

Importing torch takes more than a second of processor time, which every rank would otherwise spend. `multiprocessing` has a fork
server too, but it runs the caller's main script again in each child, which breaks scripts without a main guard.

No process outlives its launcher: the server ends the ranks when the launcher's socket closes, which the kernel does even after
kill -9, and the kernel ends the ranks when the server dies.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch.child import Child, end_with, line

# Modules that ranks import, loaded once before ranks are forked: ours take a third of the processor time of a short run.
_PRELOAD: Final = (
    "torch",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "torch.nn.parallel",
    "scaleproof.validator.measure",
    "scaleproof.validator.verify.verify",
    "scaleproof.validator.strategy.train",
    "scaleproof.validator.strategy.hybrid.trainer",
    "scaleproof.validator.strategy.parameter_server.trainer",
)


class Exit(NamedTuple):
    """How a rank ended: its exit code, or −n after signal n."""

    rank: int
    code: int


class ForkServer(Child):
    """The launcher's side: starts ranks, reports how they end, and ends them. One job at a time, which `lock` ensures."""

    def __init__(self) -> None:
        super().__init__(serve, folder_prefix())
        self.lock = threading.Lock()
        self._ready = False
        self._job = ""

    def wait_until_ready(self) -> None:
        """Returns once ranks can be forked without delay. Raises RunError where the server cannot start."""
        while not self._ready:
            try:
                self._ready = bool(self.receive(None))
            except ConnectionError:
                raise RunError(f"ranks cannot be started: {self.why()}; try: python -c 'import torch'") from None

    def start(self, folder: Path, ranks: int) -> None:
        """Starts ranks 0 … ranks−1 of the job in `folder`, in this process's working directory."""
        self._job = str(folder)
        self.send({"folder": self._job, "ranks": ranks, "cwd": os.getcwd()})

    def exits(self, timeout_s: float) -> list[Exit]:
        """Ranks of the job that have ended, once any process has ended or the timeout has passed. Raises RunError when the
        server has ended. Ranks of an earlier job may end late, as processes with a GPU do that are killed."""
        try:
            return [Exit(rank, code) for job, rank, code in self.receive(timeout_s) if job == self._job]
        except ConnectionError:
            raise RunError("the process that starts ranks was ended by another process; start the run again") from None

    def kill_ranks(self) -> None:
        """Ends all ranks of the job; their exits are still reported."""
        self.send({"kill": True})


_shared: list[ForkServer] = []
_starting = threading.Lock()


def shared() -> ForkServer:
    """The fork server of this process, started by the first call and kept until the process ends."""
    with _starting:
        if not _shared or not _shared[0].alive:
            _close_shared()
            _shared.append(ForkServer())
        return _shared[0]


@atexit.register
def _close_shared() -> None:
    while _shared:
        _shared.pop().close()


def folder_prefix() -> str:
    """Prefix of the paths of this process's temporary folders, by which the server removes them after its death."""
    return os.path.join(tempfile.gettempdir(), f"scaleproof-{os.getpid()}-")


def serve(descriptor: int, folders: str) -> None:
    """Runs the server: forks ranks on commands from the socket, until that closes.

    folders: prefix of the paths of the launcher's temporary folders.
    """
    import importlib

    for module in _PRELOAD:
        importlib.import_module(module)
    # child processes of imported modules must not keep the socket open
    os.set_inheritable(descriptor, False)
    _ForkServer(socket.socket(fileno=descriptor), folders).run()
    # skips the slow teardown of torch
    os._exit(0)


class _ForkServer:
    """The server's side, in the child process."""

    def __init__(self, control: socket.socket, folders: str) -> None:
        self.control = control
        self.folders = folders
        self.pid = os.getpid()
        self.ranks: dict[int, tuple[str, int]] = {}  # pid → folder of the job, and rank
        self.folder = ""
        self.woken, self.wake = os.pipe()
        for end in (self.woken, self.wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)

    def run(self) -> None:
        self.report("ready")
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(self.woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.woken in ready:
                    os.read(self.woken, 4096)
                    self.reap()
                if self.control in ready:
                    received = self.control.recv(65536)
                    if not received:
                        self.end_all()
                        return
                    *lines, buffer = (buffer + received).split(b"\n")
                    for text in lines:
                        self.obey(json.loads(text))

    def obey(self, message: dict[str, Any]) -> None:
        if "kill" in message:
            self.kill()
            return
        self.folder = message["folder"]
        # the launcher may have changed its working directory since the server started
        os.chdir(message["cwd"])
        for rank in range(message["ranks"]):
            pid = os.fork()
            if pid == 0:
                self.become(rank)
            self.ranks[pid] = self.folder, rank

    def become(self, rank: int) -> None:
        """Runs a forked process as a rank; never returns."""
        code = 1
        try:
            end_with(self.pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self.woken, self.wake):
                os.close(descriptor)
            self.control.close()
            from scaleproof.validator.launch import rank as rank_module

            code = rank_module.main(Path(self.folder), rank)
        finally:
            os._exit(code)

    def reap(self) -> None:
        while self.ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.report([*self.ranks.pop(pid), os.waitstatus_to_exitcode(status)])

    def report(self, message: Any) -> None:
        # if the launcher has ended, its closed socket ends the server next
        with contextlib.suppress(OSError):
            self.control.sendall(line(message))

    def end_all(self) -> None:
        """Ends the ranks and removes the temporary folders of a launcher that has ended."""
        self.kill()
        for pid in self.ranks:
            os.waitpid(pid, 0)
        for folder in glob.glob(f"{glob.escape(self.folders)}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self) -> None:
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)
