"""Child processes: Python processes that serve their launcher through a socket and end with it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

_SHUTDOWN_S: Final = 5.0
_IMPORTS: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "


class Child:
    """The launcher's side of a child process.

    code: Python code that the child runs, with its socket's descriptor as sys.argv[1] and `arguments` from [3] on. descriptors:
    further open files that it inherits.
    """

    def __init__(self, code: str, *arguments: str, descriptors: Sequence[int] = ()) -> None:
        self.socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        with theirs:
            # a session of its own, so that Ctrl-C reaches only the launcher
            self._process = subprocess.Popen(
                [sys.executable, "-c", _IMPORTS + code, str(theirs.fileno()), json.dumps(sys.path), *arguments],
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
