"""Launching of a job's processes on a lab's hosts, under torchrun's agents or our supervisor, and killing of one.

No process of a job survives: each ends with the process that started it, which the kernel enforces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from scaleproof.proof.elastic import agent, trainer
from scaleproof.proof.elastic.hosts import Hosts
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import INJECTOR, EventLog, LoggedEvent, of_trainer, read, size_bytes
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch.child import Child

_PORT: Final = 29400
POLL_S: Final = 0.01
_CLOSELY_S: Final = 0.001


@dataclass(frozen=True)
class Kill:
    """Host whose rank is killed after it has taken `after_step` steps. node: whether its agent is killed too, so that it does
    not return."""

    host: int
    after_step: int
    node: bool = False


@dataclass(frozen=True)
class ProcessTimes:
    """Seconds for a process to start and to import what training needs (start_s), and from being killed to its end (end_s)."""

    start_s: float
    end_s: float


def under_torchrun(job: Job, hosts: Hosts, settings: Settings, kill: Kill | None = None) -> list[LoggedEvent]:
    """Trains with one rank per host, started by torchrun's agents. Returns the logged events. Raises RunError."""
    with ElasticJob(job, hosts) as running:
        running.start_agents(settings, job.ranks)
        killer = Killer(running, kill)
        running.until_ended(lambda host: kill is not None and kill.node and host == kill.host, killer.kill_if_due)
    return read(job.folder)


def supervised(job: Job, hosts: Hosts, kill: Kill | None = None) -> list[LoggedEvent]:
    """Trains with one rank per host; a killed rank is restarted. Returns the logged events. Raises RunError."""
    log = EventLog(job.folder, INJECTOR, "supervisor")
    rounds = 0

    def replaced(host: int) -> bool:
        nonlocal rounds
        if kill is None or host != kill.host or rounds:
            return False
        log.note("noticed")
        rounds += 1
        running.children[host].close()
        running.start(host, trainer.stay, rounds)
        return True

    with ElasticJob(job, hosts) as running:
        for host in range(job.ranks):
            running.start(host, trainer.stay, rounds)
        running.until_ended(replaced, Killer(running, kill).kill_if_due)
    return read(job.folder)


def alone(job: Job, hosts: Hosts, host: int) -> ProcessTimes:
    """Times of a process of the job that is started and killed while nothing else of the job runs. Raises RunError."""
    with ElasticJob(job, hosts) as running:
        began_s = time.perf_counter()
        child = running.start(host, trainer.stay, trainer.NO_ROUND)

        def imported_s() -> list[float]:
            events = of_trainer(job.folder, host)
            return [event.at_s for event in events if event.what == "imported" and event.at_s > began_s]

        until_s = began_s + job.patience_s
        while not imported_s():
            if not child.alive or time.perf_counter() > until_s:
                raise RunError(f"a process of the job cannot start: {child.why()}")
            time.sleep(POLL_S)
        killed_s = time.perf_counter()
        child.kill()
        while child.alive:
            time.sleep(_CLOSELY_S)
        return ProcessTimes(imported_s()[0] - began_s, time.perf_counter() - killed_s)


def agent_alone(job: Job, hosts: Hosts, settings: Settings, host: int) -> float:
    """Seconds for the agent of a host to start while nothing else of the job runs. Raises RunError."""
    with ElasticJob(job, hosts) as running:
        began_s = time.perf_counter()
        running.start_agent(settings, host)
        running.wait_until_ready(host)
        return time.perf_counter() - began_s


class ElasticJob:
    """A job with one process per host, all of which end with the context."""

    def __init__(self, job: Job, hosts: Hosts) -> None:
        self.job, self._hosts = job, hosts
        self.children: dict[int, Child] = {}
        self._ended: set[int] = set()
        self.log = EventLog(job.folder, INJECTOR, "injector")

    def __enter__(self) -> Self:
        self.job.write()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            child.close()

    def start(self, host: int, function: Callable[..., None], *arguments: Any) -> Child:
        """Starts the process of a host, which calls `function`."""
        place = (os.getpid(), str(self._hosts.namespace(host) or ""), str(self.job.folder), host)
        self.children[host] = Child(function, *place, *arguments)
        self._ended.discard(host)
        return self.children[host]

    def start_agent(self, settings: Settings, host: int) -> Child:
        """Starts torchrun's agent of a host, which waits for a message before it requests to join. The store is on host 0."""
        endpoint = f"{self._hosts.address(0)}:{_PORT}"
        return self.start(host, agent.main, settings.arguments(endpoint, self._hosts.address(host), hosts_store=host == 0))

    def start_agents(self, settings: Settings, hosts: int) -> None:
        """Starts the agents of the first hosts, which ask to join at the same time. Raises RunError."""
        for host in range(hosts):
            self.start_agent(settings, host)
        for host in range(hosts):
            self.wait_until_ready(host)
        for child in self.children.values():
            child.send("start")

    def wait_until_ready(self, host: int) -> None:
        """Waits for the message of a host's agent. Raises RunError if no message comes."""
        child = self.children[host]
        with contextlib.suppress(ConnectionError):
            if child.receive(self.job.patience_s):
                return
        raise RunError(f"torchrun cannot be started on host {host}: {child.why()}; try: python -m torch.distributed.run --help")

    def until_ended(self, replaced: Callable[[int], bool], act: Callable[[], None]) -> None:
        """Waits until all ranks have ended well, and calls `act` frequently. replaced: whether the end of a killed host's
        process is expected; restarts it if it should be. Raises RunError."""
        seen_bytes, seen_s = 0, time.monotonic()
        while not self._all_ended(replaced):
            time.sleep(POLL_S)
            act()
            if (now_bytes := size_bytes(self.job.folder)) > seen_bytes:
                seen_bytes, seen_s = now_bytes, time.monotonic()
            if time.monotonic() - seen_s > self.job.patience_s:
                last = read(self.job.folder)[-1:]
                where = f"{last[0].what} on host {last[0].host}" if last else "its start"
                raise RunError(f"the job made no progress after {where} for {self.job.patience_s:g} s; is the machine busy?")

    def _all_ended(self, replaced: Callable[[int], bool]) -> bool:
        for host, child in list(self.children.items()):
            if child.alive or host in self._ended:
                continue
            has_ended = any(event.what == "ended" for event in of_trainer(self.job.folder, host))
            if not has_ended and not replaced(host):
                raise RunError(f"host {host} of the job ended before it was done: {child.why()}")
            if not self.children[host].alive:
                self._ended.add(host)
        return len(self._ended) == len(self.children)


class Killer:
    """Kills the rank or host of `kill` once it is due."""

    def __init__(self, running: ElasticJob, kill: Kill | None) -> None:
        self._running, self._kill = running, kill
        self._killed = False

    def kill_if_due(self) -> None:
        """Kills if enough steps have been taken, once."""
        kill, running = self._kill, self._running
        if kill is None or self._killed:
            return
        own = of_trainer(running.job.folder, kill.host)
        if not own or own[-1].step < kill.after_step:
            return
        self._killed = True
        running.log.note("killed", step=kill.after_step)
        if kill.node:
            running.children[kill.host].kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(own[-1].pid, signal.SIGKILL)
