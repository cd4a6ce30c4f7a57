"""Processors: what this machine's cores did meanwhile, and how much of their time its host gave to others."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")


class Processors:
    """All cores from now on. Where the system does not tell (it is not Linux), nothing was busy and nothing taken."""

    def __init__(self) -> None:
        self._before = _read()

    def busy(self) -> float:
        """Share of all cores' time that was not idle; time that the machine's host took counts as busy."""
        total, idle, _ = self._since()
        return 1 - idle / total if total else 0.0

    def taken(self) -> float:
        """Share of the time in which there was work that the machine's host gave to others."""
        total, idle, stolen = self._since()
        return stolen / (total - idle) if total > idle else 0.0

    def _since(self) -> list[int]:
        return [now - then for now, then in zip(_read(), self._before, strict=True)]


def usable() -> list[int]:
    """Numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def lost_s() -> float:
    """Seconds of cores with work that this machine's host has given to others so far; 0 where it never did when first asked."""
    return _read()[2] / os.sysconf("SC_CLK_TCK") if _has_host() else 0.0


@functools.cache
def _has_host() -> bool:
    """A machine of its own need not be asked time and again."""
    return _read()[2] > 0


def _read() -> tuple[int, int, int]:
    """All, idle and stolen ticks so far: fields of /proc/stat (man 5 proc_stat), without guests, which user time includes."""
    try:
        ticks = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0, 0
    return sum(ticks), ticks[3] + ticks[4], ticks[7]
