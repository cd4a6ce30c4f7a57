"""Launchers of a job's ranks: torchrun's agents, or a supervisor that starts single processes again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from scaleproof.proof.elastic import trainer
from scaleproof.proof.elastic.launching import ElasticJob
from scaleproof.proof.elastic.records import INJECTOR, EventLog
from scaleproof.proof.elastic.rendezvous import Settings


class Launcher(Protocol):
    """What starts the ranks of a job, one per host."""

    def begin(self, running: ElasticJob, hosts: int) -> None:
        """Starts the ranks of the first hosts. Raises RunError."""

    def join(self, running: ElasticJob, host: int) -> None:
        """Lets a host join."""

    def restart(self, running: ElasticJob, host: int) -> bool:
        """Starts the process of a host again, which has crashed; returns whether it does so itself."""


@dataclass(frozen=True)
class Torchrun:
    """torchrun's agents: after a failure, all ranks of the hosts that are left start again in a new group."""

    settings: Settings

    def begin(self, running: ElasticJob, hosts: int) -> None:
        """Starts the agents of the first hosts, which ask to join at the same time. Raises RunError."""
        for host in range(hosts):
            running.start_agent(self.settings, host)
        for host in range(hosts):
            running.wait_until_ready(host)
        for child in running.children.values():
            child.send("start")

    def join(self, running: ElasticJob, host: int) -> None:
        """Starts the agent of a host, which requests to join."""
        running.start_agent(self.settings, host).send("start")

    def restart(self, running: ElasticJob, host: int) -> bool:
        """False: agents start ranks, and do not end with them."""
        return False


@dataclass
class Supervisor:
    """Starts a crashed rank again; the other ranks go on running, and form a new group with it. crashes: their number."""

    crashes: int = field(default=0, init=False)

    def begin(self, running: ElasticJob, hosts: int) -> None:
        """Starts the ranks of the first hosts."""
        for host in range(hosts):
            running.start(host, trainer.stay, self.crashes)

    def join(self, running: ElasticJob, host: int) -> None:
        """Not possible: the number of ranks is fixed."""
        raise NotImplementedError

    def restart(self, running: ElasticJob, host: int) -> bool:
        """Starts the rank again, in the next group."""
        EventLog(running.job.folder, INJECTOR, "supervisor").note("noticed")
        self.crashes += 1
        running.children[host].close()
        running.start(host, trainer.stay, self.crashes)
        return True
