"""Network namespaces without names: one process, the holder, keeps them open, and the kernel removes them when it ends.

Nothing is left behind, whichever process is killed: the holder ends when its launcher's socket closes or the launcher ends,
which the kernel signals even after kill -9, and interfaces are removed with their namespace. Other processes reach a namespace
through the holder's open files, /proc/<pid>/fd/<n>.

Python 3.11 has no os.unshare and os.setns; they are called in the C library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch.child import Child, line

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_START_S: Final = 20.0


def enter(path: Path) -> None:
    """Moves the calling thread, and what it starts from now on, into the namespace. Raises RunError where it cannot."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"{path}: no network namespace there ({error.strerror}); its lab has ended, build it again") from None
    try:
        _setns(descriptor)
    except OSError as error:
        raise RunError(f"{path}: this process cannot join the namespace ({error.strerror}); run as root") from None
    finally:
        os.close(descriptor)


def inside(path: Path, function: Callable[[], T]) -> T:
    """Calls `function` in the namespace, in a thread of its own. A socket stays in the namespace where it was created."""

    def call() -> T:
        enter(path)
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


class Holder:
    """The launcher's side: `count` new network namespaces, open until `close` or until the launcher ends.

    settings: text to write to files under /proc/sys/net in each namespace, where the kernel has them.
    """

    def __init__(self, count: int, settings: Mapping[str, str]) -> None:
        """Raises RunError where namespaces cannot be made."""
        launcher = os.pidfd_open(os.getpid())
        try:
            self._child = Child(hold, launcher, count, dict(settings), descriptors=[launcher])
        finally:
            os.close(launcher)
        try:
            descriptors = self._child.receive(_START_S)
        except ConnectionError:
            descriptors = []
        if not descriptors:
            why = self._child.why()
            self._child.close()
            raise RunError(f"network namespaces cannot be made: {why}; run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN")
        self.paths = tuple(Path(f"/proc/{self.pid}/fd/{descriptor}") for descriptor in descriptors[0])

    @property
    def pid(self) -> int:
        """Process id of the holder."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the namespaces exist; works in forks of the launcher too."""
        return self.paths[0].exists()

    def close(self) -> None:
        """Ends the holder, and with it the namespaces without processes. A fork of the launcher only closes its socket."""
        self._child.close()


def hold(control: int, launcher: int, count: int, settings: Mapping[str, str]) -> None:
    """Runs the holder: creates the namespaces, sends their descriptors, and keeps them until its launcher ends.

    control: socket to the launcher. launcher: pidfd of it, since a fork of the launcher would keep the socket open.
    """
    own = _open_own()
    spaces = []
    try:
        for _ in range(count):
            _unshare()
            spaces.append(_open_own())
            for name, value in settings.items():
                # where the kernel has no such file there is nothing to set
                with contextlib.suppress(OSError):
                    Path("/proc/sys/net", name).write_text(value)
        _setns(own)
    except OSError as error:
        sys.exit(str(error.strerror))
    with socket.socket(fileno=control) as talk:
        # where the launcher has ended already, its pidfd is readable
        with contextlib.suppress(OSError):
            talk.sendall(line(spaces))
        select.select([talk.fileno(), launcher], [], [])


def _open_own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _unshare() -> None:
    _checked(_libc().unshare(_CLONE_NEWNET))


def _setns(descriptor: int) -> None:
    _checked(_libc().setns(descriptor, _CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
