"""Launching of a job's processes on a lab's hosts, under torchrun's agents or our supervisor, and killing of one.

No process of a job survives: each ends with the process that started it, which the kernel enforces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.experiments.elastic import agent, trainer
from scaleproof.validator.experiments.elastic.job import Job
from scaleproof.validator.experiments.elastic.records import INJECTOR, EventLog, LoggedEvent, of_trainer, read, size_bytes
from scaleproof.validator.experiments.elastic.rendezvous import Settings
from scaleproof.validator.launch.child import Child
from scaleproof.validator.netlab.lab import Netlab

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


def under_torchrun(job: Job, lab: Netlab, settings: Settings, kill: Kill | None = None) -> list[LoggedEvent]:
    """Trains with one rank per host, started by torchrun's agents. Returns the logged events. Raises RunError."""
    job.write()
    endpoint = f"{lab.address(0)}:{_PORT}"
    children: dict[int, Child] = {}
    with _ended(children):
        for host in range(job.ranks):
            arguments = settings.arguments(endpoint, lab.address(host), hosts_store=host == 0)
            children[host] = _child(agent.main, job, lab, host, arguments)
        for host, child in children.items():
            _wait_until_ready(host, child, job.patience_s)
        for child in children.values():
            child.send("start")
        _ElasticJob(job, children, kill).until_ended(lambda host: kill is not None and kill.node and host == kill.host)
    return read(job.folder)


def supervised(job: Job, lab: Netlab, kill: Kill | None = None) -> list[LoggedEvent]:
    """Trains with one rank per host; a killed rank is restarted. Returns the logged events. Raises RunError."""
    job.write()
    log = EventLog(job.folder, INJECTOR, "supervisor")
    children: dict[int, Child] = {}
    rounds = 0

    def start(host: int) -> Child:
        return _child(trainer.stay, job, lab, host, rounds)

    def replaced(host: int) -> bool:
        nonlocal rounds
        if kill is None or host != kill.host or rounds:
            return False
        log.note("noticed")
        rounds += 1
        children[host].close()
        children[host] = start(host)
        return True

    with _ended(children):
        for host in range(job.ranks):
            children[host] = start(host)
        _ElasticJob(job, children, kill).until_ended(replaced)
    return read(job.folder)


def alone(job: Job, lab: Netlab, host: int) -> ProcessTimes:
    """Times of a process of the job that is started and killed while nothing else of the job runs. Raises RunError."""
    job.write()
    began_s = time.perf_counter()
    child = _child(trainer.stay, job, lab, host, trainer.NO_ROUND)
    with _ended({host: child}):

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


class _ElasticJob:
    """A running job."""

    def __init__(self, job: Job, children: dict[int, Child], kill: Kill | None) -> None:
        self._job, self._children, self._kill = job, children, kill
        self._left = set(children)
        self._log = EventLog(job.folder, INJECTOR, "injector")
        self._killed = False

    def until_ended(self, replaced: Callable[[int], bool]) -> None:
        """Waits until all ranks have ended well. replaced: whether the end of a killed host's process is expected; restarts it
        if it should be. Raises RunError."""
        seen_bytes, seen_s = 0, time.monotonic()
        while not self._all_ended(replaced):
            time.sleep(POLL_S)
            self._kill_if_due()
            if (now_bytes := size_bytes(self._job.folder)) > seen_bytes:
                seen_bytes, seen_s = now_bytes, time.monotonic()
            if time.monotonic() - seen_s > self._job.patience_s:
                last = read(self._job.folder)[-1:]
                where = f"{last[0].what} on host {last[0].host}" if last else "its start"
                raise RunError(f"the job made no progress after {where} for {self._job.patience_s:g} s; is the machine busy?")

    def _all_ended(self, replaced: Callable[[int], bool]) -> bool:
        for host in [host for host in self._left if not self._children[host].alive]:
            if not self._has_ended(host) and not replaced(host):
                raise RunError(f"host {host} of the job ended before it was done: {self._children[host].why()}")
            if not self._children[host].alive:
                self._left.remove(host)
        return not self._left

    def _has_ended(self, host: int) -> bool:
        return any(event.what == "ended" for event in of_trainer(self._job.folder, host))

    def _kill_if_due(self) -> None:
        kill = self._kill
        if kill is None or self._killed:
            return
        own = of_trainer(self._job.folder, kill.host)
        if not own or own[-1].step < kill.after_step:
            return
        self._killed = True
        self._log.note("killed", step=kill.after_step)
        if kill.node:
            self._children[kill.host].kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(own[-1].pid, signal.SIGKILL)


def _child(function: Callable[..., None], job: Job, lab: Netlab, host: int, *arguments: Any) -> Child:
    """A process of the job on a host."""
    return Child(function, os.getpid(), str(lab.namespace(host)), str(job.folder), host, *arguments)


@contextmanager
def _ended(children: dict[int, Child]) -> Iterator[None]:
    """Ends the children that still run, and what they have started, after the context."""
    try:
        yield
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.close()


def _wait_until_ready(host: int, child: Child, timeout_s: float) -> None:
    try:
        ready = bool(child.receive(timeout_s))
    except ConnectionError:
        ready = False
    if not ready:
        raise RunError(f"torchrun cannot be started on host {host}: {child.why()}; try: python -m torch.distributed.run --help")
