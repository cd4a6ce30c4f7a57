"""Processor usage: how busy this machine's cores were, and the time that a hypervisor gave to other machines (steal)."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")


class Processors:
    """Usage of all cores from now on; 0 on systems other than Linux."""

    def __init__(self) -> None:
        self._before = _read()

    def busy(self) -> float:
        """Share of all cores' time that was not idle; stolen time counts as busy."""
        total, idle, _ = self._since()
        return 1 - idle / total if total else 0.0

    def taken(self) -> float:
        """Stolen share of the cores' time in which they had work."""
        total, idle, stolen = self._since()
        return stolen / (total - idle) if total > idle else 0.0

    def _since(self) -> list[int]:
        return [now - then for now, then in zip(_read(), self._before, strict=True)]


def usable() -> list[int]:
    """Numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def lost_s() -> float:
    """Stolen core-seconds so far; 0 if no time was stolen before the first call."""
    return _read()[2] / os.sysconf("SC_CLK_TCK") if _has_host() else 0.0


@functools.cache
def _has_host() -> bool:
    """Whether time was stolen before the first call; cached, to spare physical machines repeated reading."""
    return _read()[2] > 0


def _read() -> tuple[int, int, int]:
    """Total, idle and stolen ticks so far, from /proc/stat (man 5 proc_stat), without guests, which user time includes."""

    try:
        ticks = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0, 0
    return sum(ticks), ticks[3] + ticks[4], ticks[7]
