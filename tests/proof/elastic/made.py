"""Artificial runs: records of processes for given durations of all parts."""

from __future__ import annotations

from pathlib import Path

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.simulator.scenario.load import load

RANKS = 3


def job() -> Job:
    """A job of three workers, of which two can continue, with seventeen steps."""
    overrides = ["batch={total: 24}", "steps=14"]
    scenarios = {ranks: load("netlab-ddp-after", [f"strategy.workers={ranks}", *overrides]) for ranks in (2, 3)}
    return Job(Path("nowhere"), scenarios, every=4)


def undisturbed(one: Job, step_s: float, save_s: float, now_s: float = 100.0) -> list[LoggedEvent]:
    """The log of a run without events, in which rank 0 saves."""
    events = [LoggedEvent(now_s, host, "agent", "started", 1) for host in range(RANKS)]
    now_s += 6.0
    events += [LoggedEvent(now_s, host, "trainer", "imported", 1) for host in range(RANKS)]
    now_s += 1.0 + save_s
    events.append(LoggedEvent(now_s - 0.5, 0, "trainer", "saved", 1, 0, 0, save_s))
    events += [LoggedEvent(now_s, host, "trainer", "ready", 1, 0, host) for host in range(RANKS)]
    for step in range(1, one.steps + 1):
        now_s += step_s
        events += [LoggedEvent(now_s, host, "trainer", "step", 1, step, host) for host in range(RANKS)]
        if step % one.every == 0 and step < one.steps:
            now_s += save_s
            events.append(LoggedEvent(now_s, 0, "trainer", "saved", 1, step, 0, save_s))
    return sorted(events, key=lambda event: event.at_s)
