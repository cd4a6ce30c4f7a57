"""Child processes: Python processes that serve their launcher through a socket and end with it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

_SEND_S: Final = 5.0
_SHUTDOWN_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
# Arguments: module and name of the function, the launcher's sys.path, the function's arguments.
_CODE: Final = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[4]))"
)


class Child:
    """The launcher's side of a child process, which calls `function(socket, *arguments)`.

    function: found by its module and name; `socket` is the descriptor of the child's socket. arguments: plain data for JSON.
    descriptors: further open files that the child inherits.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, descriptors: Sequence[int] = ()) -> None:
        self.socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        self._buffer = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        with theirs:
            call = [function.__module__, function.__name__, json.dumps(sys.path), json.dumps([theirs.fileno(), *arguments])]
            # a session of its own, so that Ctrl-C reaches only the launcher
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, *call],
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno(), *descriptors],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child runs; False in a fork of the launcher."""
        return self.owner == os.getpid() and self._process.poll() is None

    def send(self, message: Any) -> None:
        """Sends plain data to the child; without effect if it has ended, which the next `receive` notices."""
        self.socket.settimeout(_SEND_S)
        with contextlib.suppress(OSError):
            self.socket.sendall(line(message))

    def receive(self, timeout_s: float | None) -> list[Any]:
        """Messages of the child, once there are any or the timeout has passed. Raises ConnectionError when it has ended."""
        self.socket.settimeout(timeout_s)
        try:
            received = self.socket.recv(65536)
        except TimeoutError:
            return []
        except OSError:
            received = b""
        if not received:
            raise ConnectionError("the child has ended")
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        return [json.loads(text) for text in lines]

    def kill(self) -> None:
        """Kills the child if it still runs, without waiting for its end."""
        if self.alive:
            self._process.kill()

    def why(self) -> str:
        """Ends the child if it still runs; returns the last line that it printed, which gives the reason of its end."""
        self._end()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "ended by another process"

    def close(self) -> None:
        """Ends the child. A fork of the launcher only closes its socket."""
        self._end()
        self.socket.close()
        self._errors.close()

    def _end(self) -> None:
        if self.owner != os.getpid():
            return
        # forks of the launcher have the socket too, so closing it is not enough; it may be closed already
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def line(message: Any) -> bytes:
    """A message between launcher and child."""
    return json.dumps(message).encode() + b"\n"


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent, whose process id is `parent`, ends; only on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # the parent may have ended before
    if os.getppid() != parent:
        os._exit(1)
