"""Processes of a job on their hosts, and the times of single ones.

No process of a job survives: each ends with the process that started it, which the kernel enforces.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from scaleproof.proof.elastic import agent, trainer
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import INJECTOR, EventLog, of_trainer, read, size_bytes
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch.child import Child

_PORT: Final = 29400
POLL_S: Final = 0.01
_CLOSELY_S: Final = 0.001
# Addresses of the loopback interface: 127.0.0.1 and up.
_FIRST: Final = 1


class Hosts(Protocol):
    """Hosts on which agents and ranks run: those of a lab, or processes of this machine with addresses of their own."""

    def address(self, host: int) -> str:
        """IP address of a host."""

    def namespace(self, host: int) -> Path | None:
        """Network namespace of a host; None for that of this machine."""

    def limit(self, host: int, rate_Bps: float) -> None:
        """Changes the rate of a host's link in both directions."""


class LocalHosts:
    """Processes of this machine, whose addresses are those of its loopback interface."""

    def address(self, host: int) -> str:
        """IP address of a host."""
        return f"127.0.0.{_FIRST + host}"

    def namespace(self, host: int) -> None:
        """None: all are in the namespace of this machine."""
        return

    def limit(self, host: int, rate_Bps: float) -> None:
        """Raises RunError: the loopback interface is not limited."""
        raise RunError(f"the link of host {host} cannot be limited to {rate_Bps:g} byte/s on this machine; use --on netlab")


@dataclass(frozen=True)
class ProcessTimes:
    """Seconds for a process to start and to import what training needs (start_s), and from being killed to its end (end_s)."""

    start_s: float
    end_s: float


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
        self.job, self.hosts = job, hosts
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
        place = (os.getpid(), str(self.hosts.namespace(host) or ""), str(self.job.folder), host)
        self.children[host] = Child(function, *place, *arguments)
        self._ended.discard(host)
        return self.children[host]

    def start_agent(self, settings: Settings, host: int) -> Child:
        """Starts torchrun's agent of a host, which waits for a message before it requests to join. The store is on host 0."""
        endpoint = f"{self.hosts.address(0)}:{_PORT}"
        return self.start(host, agent.main, settings.arguments(endpoint, self.hosts.address(host), hosts_store=host == 0))

    def wait_until_ready(self, host: int) -> None:
        """Waits for the message of a host's agent. Raises RunError if no message comes."""
        child = self.children[host]
        with contextlib.suppress(ConnectionError):
            if child.receive(self.job.patience_s):
                return
        raise RunError(f"torchrun cannot be started on host {host}: {child.why()}; try: python -m torch.distributed.run --help")

    def until_ended(self, is_expected: Callable[[int], bool], act: Callable[[], None]) -> None:
        """Waits until all ranks have ended well, and calls `act` frequently. is_expected: whether a host's process may end
        before that; starts it again if it should be. Raises RunError."""
        seen_bytes, seen_s = 0, time.monotonic()
        while not self._all_ended(is_expected):
            time.sleep(POLL_S)
            act()
            if (now_bytes := size_bytes(self.job.folder)) > seen_bytes:
                seen_bytes, seen_s = now_bytes, time.monotonic()
            if time.monotonic() - seen_s > self.job.patience_s:
                last = read(self.job.folder)[-1:]
                where = f"{last[0].what} on host {last[0].host}" if last else "its start"
                raise RunError(f"the job made no progress after {where} for {self.job.patience_s:g} s; is the machine busy?")

    def _all_ended(self, is_expected: Callable[[int], bool]) -> bool:
        for host, child in list(self.children.items()):
            if child.alive or host in self._ended:
                continue
            has_ended = any(event.what == "ended" for event in of_trainer(self.job.folder, host))
            if not has_ended and not is_expected(host):
                raise RunError(f"host {host} of the job ended before it was done: {child.why()}")
            if not self.children[host].alive:
                self._ended.add(host)
        return len(self._ended) == len(self.children)
