"""Inspection of processes, for tests that kill them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from scaleproof.validator.launch import fork_server


def children(pid: int) -> list[int]:
    """Processes that `pid` has started and that still run, in order of their start."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return sorted(child for child in map(int, found) if is_running(child))


def descendants(pid: int) -> list[int]:
    """All direct and indirect children."""
    return [process for child in children(pid) for process in (child, *descendants(child))]


def is_running(pid: int) -> bool:
    """Whether the process runs: zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def own_ranks() -> list[int]:
    """Ranks that this process has running, in rank order."""
    return children(fork_server.shared().pid)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    """Whether the condition became true before the timeout."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True
