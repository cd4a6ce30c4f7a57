"""Artificial runs: records of processes for given durations of all parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import Kill
from scaleproof.proof.elastic.measured import Loss
from scaleproof.proof.elastic.records import INJECTOR, LoggedEvent
from scaleproof.simulator.scenario.load import load

RANKS = 3
KILL = Kill(host=2, after_step=11)


def job(every: int = 4, **changes: float) -> Job:
    """A job of three workers, of which two can continue, with seventeen steps."""
    overrides = ["batch={total: 24}", "steps=14"]
    scenarios = {ranks: load("netlab-ddp-after", [f"strategy.workers={ranks}", *overrides]) for ranks in (2, 3)}
    return replace(Job(Path("nowhere"), scenarios, every), **changes)


@dataclass
class Timeline:
    """Ranks of one model-parallel group, of which rank 0 saves."""

    job: Job
    step_s: float
    save_s: float
    now_s: float = 100.0

    def undisturbed(self) -> list[LoggedEvent]:
        return sorted(self._begin() | set(self._steps(0, self.job.steps)), key=lambda event: event.at_s)

    def disturbed(self, kill: Kill, loss: Loss, after_s: float) -> list[LoggedEvent]:
        """With a kill, of which the work that is lost follows from the step. after_s: what a step takes from then on."""
        events = self._begin() | set(self._steps(0, kill.after_step))
        checkpoint = kill.after_step // self.job.every * self.job.every
        left = [host for host in range(RANKS) if not (kill.node and host == kill.host)]
        events.add(LoggedEvent(self.now_s, INJECTOR, "injector", "killed", 1, step=kill.after_step))
        self.now_s += loss.detection_s
        events.add(LoggedEvent(self.now_s, left[-1], "agent", "noticed", 1))
        self.now_s += loss.meeting_s
        events |= {LoggedEvent(self.now_s, host, "agent", "met", 1) for host in left}
        self.now_s += loss.start_s
        events |= {LoggedEvent(self.now_s, host, "trainer", "ready", 2, checkpoint, host) for host in left}
        self.step_s = after_s
        events |= set(self._steps(checkpoint, self.job.steps, left))
        return sorted(events, key=lambda event: event.at_s)

    def _begin(self) -> set[LoggedEvent]:
        events = {LoggedEvent(self.now_s, host, "agent", "started", 1) for host in range(RANKS)}
        self.now_s += 6.0
        events |= {LoggedEvent(self.now_s, host, "trainer", "imported", 1) for host in range(RANKS)}
        self.now_s += 1.0 + self.save_s
        events.add(LoggedEvent(self.now_s - 0.5, 0, "trainer", "saved", 1, 0, 0, self.save_s))
        return events | {LoggedEvent(self.now_s, host, "trainer", "ready", 1, 0, host) for host in range(RANKS)}

    def _steps(self, first: int, last: int, hosts: list[int] | None = None) -> Iterator[LoggedEvent]:
        for step in range(first + 1, last + 1):
            self.now_s += self.step_s
            for host in range(RANKS) if hosts is None else hosts:
                yield LoggedEvent(self.now_s, host, "trainer", "step", 1, step, host)
            if step % self.job.every == 0 and step < self.job.steps:
                self.now_s += self.save_s
                yield LoggedEvent(self.now_s, 0, "trainer", "saved", 1, step, 0, self.save_s)
        for host in range(RANKS) if hosts is None else hosts:
            if last == self.job.steps:
                yield LoggedEvent(self.now_s, host, "trainer", "ended", 1, last, host, digest=f"of {host}")
