"""Processor usage: how busy this machine's cores were, and the time that a hypervisor gave to other machines (steal)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_STAT: Final = Path("/proc/stat")
# Columns that count as work of a core: user, nice, system and steal. Interrupts are left out, as they include those of the
# run's own network.
_WORK: Final = (0, 1, 2, 7)
# The kernel counts in ticks of 10 ms, which are too coarse for less time.
_SHORTEST_S: Final = 0.5


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


@dataclass(frozen=True)
class Usage:
    """Seconds of work until now. cores_s: of each core that this process may use, by any process. own_s: of this process."""

    at_s: float
    cores_s: Mapping[int, float]
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        """Usage of cores and of this process at this instant."""
        return cls(time.perf_counter(), _core_seconds(usable()), time.process_time())

    def since(self, earlier: Usage) -> dict[str, Any]:
        """Usage since an earlier time, as plain data for JSON."""
        cores_s = {str(core): seconds - earlier.cores_s[core] for core, seconds in self.cores_s.items()}
        return {"elapsed_s": self.at_s - earlier.at_s, "cores_s": cores_s, "own_s": self.own_s - earlier.own_s}


def foreign_loads(machines: Sequence[str], usages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By machine, the share of its cores that other processes than ranks used during training; without unknown ones.

    machines: machine of each rank. usages: `Usage.since` of each rank.
    """
    loads = {}
    for machine in dict.fromkeys(machines):
        own = [usage for usage, where in zip(usages, machines, strict=True) if where == machine]
        elapsed_s = min(usage["elapsed_s"] for usage in own)
        cores_s: dict[str, float] = {}
        for usage in own:
            cores_s |= {core: max(seconds, cores_s.get(core, 0.0)) for core, seconds in usage["cores_s"].items()}
        if cores_s and elapsed_s >= _SHORTEST_S:
            others_s = sum(cores_s.values()) - sum(usage["own_s"] for usage in own)
            loads[machine] = min(1.0, max(0.0, others_s / (elapsed_s * len(cores_s))))
    return loads


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
    """Total, idle and stolen ticks of all cores so far, without guests, which user time includes."""
    ticks = _ticks().get("cpu", [0] * 8)[:8]
    return sum(ticks), ticks[3] + ticks[4], ticks[7]


def _core_seconds(cores: Iterable[int]) -> dict[int, float]:
    """Seconds of work of cores so far; empty if the kernel does not report it."""
    ticks, per_s = _ticks(), os.sysconf("SC_CLK_TCK")
    known = {core: ticks[f"cpu{core}"] for core in cores if f"cpu{core}" in ticks}
    return {core: sum(own[column] for column in _WORK) / per_s for core, own in known.items()}


def _ticks() -> dict[str, list[int]]:
    """Ticks so far by kind of use, of all cores ("cpu") and of each, from /proc/stat (man 5 proc_stat)."""
    try:
        rows = [line.split() for line in _STAT.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return {}
    return {name: [int(field) for field in fields] for name, *fields in rows}
