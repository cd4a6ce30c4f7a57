"""The experiment: probes processes of a job, predicts its timeline along the events, runs it for real, and compares the two."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Final, Literal

from scaleproof.proof.elastic import launching
from scaleproof.proof.elastic.events.injector import train_along
from scaleproof.proof.elastic.events.measured_timeline import measured as measured_timeline
from scaleproof.proof.elastic.events.probed_times import ProbedTimes, SupervisorTimes, TorchrunTimes
from scaleproof.proof.elastic.events.state_check import check_state
from scaleproof.proof.elastic.foreign_load import ForeignLoad
from scaleproof.proof.elastic.job import Job, check
from scaleproof.proof.elastic.launchers import Launcher, Supervisor, Torchrun
from scaleproof.proof.elastic.launching import Hosts, LocalHosts, ProcessTimes
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.proof.elastic.undisturbed import pieces
from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.reliability import HostFailure, LinkChange, ProcessCrash, SpotInterruption
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.netlab import compatibility
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.record.steps import warmup_steps
from scaleproof.validator.verify.verify import check_verifiable

Report = Callable[[str], None]
Place = Literal["local", "netlab"]
# Processes that share cores start differently each time, so several starts are measured.
_STARTS: Final = 3
# Steps and checkpoints of the undisturbed run, from which the times of starting a group and of a checkpoint come.
_PROBE_STEPS: Final = 6
_PROBE_EVERY: Final = 2


class Experiment:
    """A scenario with events that can be run for real. Raises InputError for one that cannot."""

    def __init__(self, scenario: Scenario, on: Place) -> None:
        self._events = EventJob(scenario)
        self.scenario, self._on = scenario, on
        self._check()
        sizes = range(min(self._events.hosts), self._events.most_hosts + 1)
        self._by_ranks = {hosts: self._events.scenario_on(hosts) for hosts in sizes if self._ranks_on(hosts) == hosts}
        self.settings = Settings((min(self._events.hosts), self._events.most_hosts), restarts=len(self._events.events) + 3)
        job = self._job(Path("unused"), scenario.steps, self._events.reliability.checkpoint.steps or 1)
        check(job)
        for one in self._by_ranks.values():
            check_verifiable(one)
        if on == "netlab":
            compatibility.check(job.scenario)

    def run(self, folder: Path, report: Report) -> ElasticOutcome:
        """Probes, predicts, runs and compares. folder: for logs and checkpoints. Raises RunError."""
        with self._hosts() as hosts:
            times = self._probed(hosts, folder / "undisturbed", report)
            predicted = elastic(self.scenario, times)
            report(f"{self.scenario.name}: training along {counted(len(self._events.events), 'event')}")
            job = self._job(folder / "events", self.scenario.steps, self._every)
            with ForeignLoad() as others:
                log = train_along(job, hosts, self._launcher(), self._events.first_hosts, self._events.events)
        report(f"{self.scenario.name}: the same steps in one process")
        state = check_state(job, log)
        measured = measured_timeline(self._events, log)
        return ElasticOutcome(on=self._on, predicted=predicted, measured=measured, state=state, warning=others.warning)

    def _check(self) -> None:
        scenario, events = self.scenario, self._events
        for place, event in enumerate(events.events):
            where = ("reliability", "events", place)
            if self._has_servers and not isinstance(event, ProcessCrash | LinkChange):
                message = f"{event.kind} changes the hosts, which jobs with parameter servers keep; give crash or link"
                raise FieldError((*where, "kind"), message)
            if event.host == 0 and isinstance(event, HostFailure | SpotInterruption):
                message = "host 0 has torchrun's store and writes the checkpoints, so it has to stay; give another host"
                raise FieldError((*where, "host"), message)
            if self._on == "local" and isinstance(event, LinkChange):
                raise FieldError((*where, "kind"), "links of this machine's processes are not limited; use --on netlab")
        if scenario.cluster.node.devices != 1:
            message = f"{scenario.cluster.node.devices}, but each host has one rank when events are run; give 1"
            raise FieldError(("cluster", "node", "devices"), message)
        for hosts in events.hosts:
            if self._ranks_on(hosts) != hosts:
                message = f"{scenario.total_samples} samples are not divisible among {hosts} hosts; give batch.per_worker"
                raise FieldError(("batch", "total"), message)
        least = 1 + warmup_steps(scenario)
        if scenario.steps < least:
            raise FieldError(("steps",), f"{scenario.steps} is too few; give at least {least}")
        if not events.reliability.checkpoint.steps:
            raise FieldError(("reliability", "checkpoint", "steps"), "missing; give the steps between checkpoints")

    @property
    def _has_servers(self) -> bool:
        return isinstance(self.scenario.strategy, ParameterServer)

    def _launcher(self) -> Launcher:
        return Supervisor() if self._has_servers else Torchrun(self.settings)

    def _ranks_on(self, hosts: int) -> int:
        """Number of ranks that train on this number of hosts; 0 where none can."""
        return self._events.scenario_on(hosts).strategy.ranks if self._events.workers(hosts) else 0

    @property
    def _every(self) -> int:
        every = self._events.reliability.checkpoint.steps
        assert every is not None, "checked"
        return every

    def _job(self, folder: Path, steps: int, every: int) -> Job:
        by_ranks = {}
        for ranks, scenario in self._by_ranks.items():
            # a job counts warm-up steps in addition
            by_ranks[ranks] = scenario.copied(steps=steps - warmup_steps(scenario))
        if self._has_servers:
            return Job(folder, by_ranks, every)
        return Job(folder, by_ranks, every, hands_over=True, silence_s=20.0)

    def _hosts(self) -> AbstractContextManager[Hosts]:
        if self._on == "local":
            return nullcontext(LocalHosts())
        return Netlab(compatibility.lab_cluster(self._by_ranks[max(self._by_ranks)]))

    def _probed(self, hosts: Hosts, folder: Path, report: Report) -> ProbedTimes:
        """Times of processes of the job by themselves, and of the job on as many hosts as the events lead to."""
        name = self.scenario.name
        job = self._job(folder, max(_PROBE_STEPS, 1 + warmup_steps(self.scenario)), _PROBE_EVERY)
        last = job.ranks - 1
        report(f"{name}: starting single processes")
        starts = [launching.alone(job, hosts, last) for _ in range(_STARTS)]
        alone = ProcessTimes(*(statistics.median(times_s) for times_s in zip(*map(astuple, starts), strict=True)))
        agents_s = [launching.agent_alone(job, hosts, self.settings, last) for _ in range(_STARTS) if not self._has_servers]
        # the starts have written logs too
        for path in folder.iterdir():
            path.unlink()
        report(f"{name}: training undisturbed")
        found = pieces(train_along(job, hosts, self._launcher(), job.ranks))
        if self._has_servers:
            return SupervisorTimes(job, found, alone)
        return TorchrunTimes(job, found, alone, self.settings, statistics.median(agents_s))
