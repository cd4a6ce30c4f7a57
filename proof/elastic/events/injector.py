"""Injection of events: hosts of a running job are killed, given notice, or started when the events say so."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence

from scaleproof.proof.elastic.hosts import Hosts
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import ElasticJob
from scaleproof.proof.elastic.records import LoggedEvent, of_trainer, read
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.scenario.reliability import AnyHostEvent, HostFailure, HostJoin, SpotInterruption


def train_along(
    job: Job, hosts: Hosts, settings: Settings, first_hosts: int, events: Sequence[AnyHostEvent]
) -> list[LoggedEvent]:
    """Trains under torchrun's agents, from the first hosts on, while the events occur. Returns the log. Raises RunError."""
    with ElasticJob(job, hosts) as running:
        injector = Injector(running, settings, events)
        running.start_agents(settings, first_hosts)
        running.until_ended(injector.is_gone, injector.act)
    return read(job.folder)


class Injector:
    """Makes events occur in a running job, in their order. Host 0 shows how many steps have been taken."""

    def __init__(self, running: ElasticJob, settings: Settings, events: Sequence[AnyHostEvent]) -> None:
        self._running, self._settings = running, settings
        self._pending = deque(events)
        self._gone: set[int] = set()
        # hosts with notice, and when they go
        self._leaving_s: dict[int, float] = {}
        self._began_s: float | None = None

    def is_gone(self, host: int) -> bool:
        """Whether a host has been made to go, so that its agent may end."""
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
        if event.at_s is not None:
            return now_s - self._began_s >= event.at_s
        assert event.step is not None, "an event has a time or a step"
        return max((one.step for one in own), default=0) >= event.step

    def _occur(self, event: AnyHostEvent, now_s: float) -> None:
        what = {HostFailure: "killed", SpotInterruption: "notified", HostJoin: "available"}[type(event)]
        self._running.log.note(what, text=event.words, rank=event.host)
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

    def _kill(self, host: int) -> None:
        """Ends the agent of a host at once, with which its rank ends."""
        self._gone.add(host)
        self._running.children[host].kill()
        self._running.log.note("gone", rank=host)

    def _join(self, host: int) -> None:
        if (old := self._running.children.get(host)) is not None:
            self._leaving_s.pop(host, None)
            old.close()
        self._gone.discard(host)
        self._running.start_agent(self._settings, host).send("start")
