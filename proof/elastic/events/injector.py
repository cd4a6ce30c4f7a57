"""Injection of events: what `reliability.events` say is done to the hosts, processes and links of a running job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launchers import Launcher
from scaleproof.proof.elastic.launching import ElasticJob, Hosts
from scaleproof.proof.elastic.records import LoggedEvent, of_trainer, read
from scaleproof.simulator.scenario.reliability import (
    AnyHostEvent,
    HostFailure,
    HostJoin,
    LinkChange,
    ProcessCrash,
    SpotInterruption,
)

# What is logged of each kind of event.
LOGGED: Final = {
    HostFailure: "killed",
    SpotInterruption: "notified",
    HostJoin: "available",
    ProcessCrash: "crashed",
    LinkChange: "link changed",
}


def train_along(
    job: Job, hosts: Hosts, launcher: Launcher, first_hosts: int, events: Sequence[AnyHostEvent] = ()
) -> list[LoggedEvent]:
    """Trains from the first hosts on, while the events occur. Returns the log. Raises RunError."""
    with ElasticJob(job, hosts) as running:
        injector = Injector(running, launcher, events)
        launcher.begin(running, first_hosts)
        running.until_ended(injector.is_expected, injector.act)
    return read(job.folder)


class Injector:
    """Makes events occur in a running job, in their order. Host 0 shows how many steps have been taken."""

    def __init__(self, running: ElasticJob, launcher: Launcher, events: Sequence[AnyHostEvent]) -> None:
        self._running, self._launcher = running, launcher
        self._pending = deque(events)
        self._gone: set[int] = set()
        self._crashed: set[int] = set()
        # hosts with notice, and when they go
        self._leaving_s: dict[int, float] = {}
        self._began_s: float | None = None
        self._steps = 0

    def is_expected(self, host: int) -> bool:
        """Whether the end of a host's process follows from an event; the launcher starts a crashed one again."""
        if host in self._crashed:
            self._crashed.remove(host)
            return self._launcher.restart(self._running, host)
        return host in self._gone

    def act(self) -> None:
        """Lets the events occur that are due."""
        now_s = time.perf_counter()
        for host, at_s in list(self._leaving_s.items()):
            if now_s >= at_s or not self._running.children[host].alive:
                self._kill(host)
                del self._leaving_s[host]
        while self._pending and self._is_due(self._pending[0], now_s):
            self._occur(self._pending.popleft(), now_s)

    def _is_due(self, event: AnyHostEvent, now_s: float) -> bool:
        own = of_trainer(self._running.job.folder, 0)
        if self._began_s is None:
            self._began_s = next((one.at_s for one in own if one.what == "ready"), None)
        if self._began_s is None:
            return False
        self._steps = max((one.step for one in own), default=0)
        if event.at_s is not None:
            return now_s - self._began_s >= event.at_s
        assert event.step is not None, "an event has a time or a step"
        return self._steps >= event.step

    def _occur(self, event: AnyHostEvent, now_s: float) -> None:
        # an event at a time occurs within a step
        step = self._steps + (event.at_s is not None)
        self._running.log.note(LOGGED[type(event)], text=event.words, rank=event.host, step=step)
        match event:
            case HostFailure():
                self._kill(event.host)
            case SpotInterruption():
                self._gone.add(event.host)
                self._leaving_s[event.host] = now_s + event.notice_s
                if event.notice_s > 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._running.children[event.host].pid, signal.SIGTERM)
                else:
                    self._kill(event.host)
            case HostJoin():
                self._join(event.host)
            case ProcessCrash():
                self._crash(event.host)
            case LinkChange():
                self._running.hosts.limit(event.host, event.bandwidth_Bps)

    def _kill(self, host: int) -> None:
        """Ends the agent of a host at once, with which its rank ends."""
        self._gone.add(host)
        self._running.children[host].kill()
        self._running.log.note("gone", rank=host)

    def _crash(self, host: int) -> None:
        """Ends the rank of a host at once."""
        self._crashed.add(host)
        with contextlib.suppress(ProcessLookupError):
            os.kill(of_trainer(self._running.job.folder, host)[-1].pid, signal.SIGKILL)
        self._running.log.note("gone", rank=host)

    def _join(self, host: int) -> None:
        if (old := self._running.children.get(host)) is not None:
            self._leaving_s.pop(host, None)
            old.close()
        self._gone.discard(host)
        self._launcher.join(self._running, host)
