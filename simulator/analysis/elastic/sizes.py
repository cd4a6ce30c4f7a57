"""Hosts that train during events: checks of the events, and the job's size and step time on some hosts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.reliability import AnyHostEvent, HostFailure, HostJoin, LinkChange, SpotInterruption
from scaleproof.simulator.scenario.schema import Scenario

# Bandwidths in byte/s of links that have changed, by the place of their hosts among those that train.
ChangedLinks = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class JobSize:
    """The job on a number of hosts. samples: per step. compute_s: from the beginning of a step until ranks communicate."""

    workers: int
    samples: int
    step_s: float
    compute_s: float


class EventJob:
    """A scenario with events of hosts. Raises FieldError for events that cannot occur, or that leave too few or many hosts."""

    def __init__(self, scenario: Scenario) -> None:
        reliability = scenario.reliability
        if reliability is None or not reliability.events:
            message = "missing; give a list such as [{kind: failure, host: 1, step: 20}, {kind: join, host: 1, at: 60 s}]"
            raise FieldError(("reliability", "events"), message)
        self.scenario, self.reliability = scenario, reliability
        self.first_hosts = scenario.strategy.nodes_needed(scenario.cluster)
        if "workers" not in type(scenario.strategy).model_fields:
            message = f"{scenario.strategy.kind} cannot continue with another number of workers; give data_parallel or hybrid"
            raise FieldError(("strategy", "kind"), message)
        self._check_order()
        self.hosts = self._hosts()
        self.most_hosts = self._most_hosts(max(self.hosts))
        for place, hosts in enumerate(self.hosts[1:]):
            if not self.workers(hosts):
                least = counted(self.reliability.least_workers, "worker")
                message = f"{counted(hosts, 'host')} would be left, which cannot train {least}; leave the event out, or set "
                raise FieldError(self._at(place), message + "reliability.least_workers lower")
        self.size = functools.cache(self._size)

    @property
    def events(self) -> tuple[AnyHostEvent, ...]:
        """The events in the order in which they occur."""
        return self.reliability.events

    def scenario_on(self, hosts: int, links: ChangedLinks = ()) -> Scenario:
        """The scenario with as many workers as this number of hosts can have, whose links have changed."""
        found = self._elastic.of(self.workers(hosts))
        assert found is not None, "sizes are checked"
        return found.copied(cluster=_with_links(found.cluster, links)) if links else found

    def workers(self, hosts: int) -> int:
        """Number of workers that train on this number of hosts; 0 where none can."""
        return self._elastic.workers_on(hosts)

    def _size(self, hosts: int, links: ChangedLinks = ()) -> JobSize:
        """Workers and predicted times on this number of hosts, whose links have changed."""
        scenario = self.scenario_on(hosts, links)
        run = timed(scenario)
        compute_s = float(run.breakdown_s["compute"])
        return JobSize(scenario.strategy.workers, scenario.total_samples, float(run.step_time_s), compute_s)

    @functools.cached_property
    def _elastic(self) -> ElasticSizes:
        """Sizes up to that on the largest number of hosts, which the events or `most_workers` lead to."""
        scenario, hosts = self.scenario, self.first_hosts
        workers = scenario.strategy.workers * max(self.hosts) // hosts
        if workers > scenario.strategy.workers:
            scenario = scenario.rebuilt(strategy=scenario.strategy.model_copy(update={"workers": workers}))
        return ElasticSizes(scenario)

    def _check_order(self) -> None:
        latest = {"at": 0.0, "step": 0.0}
        for place, event in enumerate(self.events):
            field, value = ("at", event.at_s) if event.at_s is not None else ("step", event.step)
            assert value is not None, "one of them is given"
            if value < latest[field]:
                message = "earlier than that of an event before it; list events in the order in which they occur"
                raise FieldError((*self._at(place), field), message)
            latest[field] = value
            if field == "step" and value >= self.scenario.steps:
                message = f"training ends with step {self.scenario.steps}; give an earlier one, or more steps"
                raise FieldError((*self._at(place), field), message)

    def _hosts(self) -> list[int]:
        """Number of hosts at first and after each event."""
        nodes = self.scenario.cluster.nodes
        training = set(range(self.first_hosts))
        numbers = [len(training)]
        for place, event in enumerate(self.events):
            where = (*self._at(place), "host")
            if event.host >= nodes:
                message = f"there is no host {event.host}: the cluster has {nodes}, from 0; give one of them, or cluster.nodes="
                raise FieldError(where, f"{message}{event.host + 1}")
            if isinstance(event, HostJoin):
                if event.host in training:
                    others = sorted(set(range(nodes)) - training)
                    message = f"host {event.host} trains already; "
                    raise FieldError(where, message + (f"host {others[0]} does not" if others else "all hosts do"))
                training.add(event.host)
            elif event.host not in training:
                message = f"host {event.host} does not train then; give one of {', '.join(map(str, sorted(training)))}"
                raise FieldError(where, message)
            elif isinstance(event, HostFailure | SpotInterruption):
                training.discard(event.host)
            elif isinstance(event, LinkChange):
                self._check_link(event, self._at(place))
            if not training:
                raise FieldError(where, "no host is left; let a host join before, or leave the event out")
            numbers.append(len(training))
        return numbers

    def _check_link(self, event: LinkChange, place: tuple[str | int, ...]) -> None:
        network = self.scenario.cluster.network
        if network is None:
            raise FieldError((*place, "kind"), "the cluster has no network, so that hosts have no links; leave the event out")
        try:
            _with_links(self.scenario.cluster, ((event.host, event.bandwidth_Bps),))
        except FieldError as error:
            raise FieldError((*place, "kind"), error.message) from None

    def _most_hosts(self, reached: int) -> int:
        """Number of hosts at which nobody waits for further ones."""
        most = self.reliability.most_workers
        if most is None:
            return reached
        first = self.scenario.strategy.workers
        if most < first:
            message = f"{most}, but the job begins with {first}; give at least that"
            raise FieldError(("reliability", "most_workers"), message)
        hosts = most * self.first_hosts // first
        for place, number in enumerate(self.hosts[1:]):
            if number > hosts:
                message = f"{counted(number, 'host')}, but most_workers is {most}, on {hosts} of them; leave the event out, "
                raise FieldError(self._at(place), message + f"or set reliability.most_workers={most * number // hosts}")
        return hosts

    def _at(self, place: int) -> tuple[str | int, ...]:
        return ("reliability", "events", place)


def _with_links(cluster: Cluster, links: ChangedLinks) -> Cluster:
    """The cluster with changed links of some hosts. Raises FieldError where hosts have no link of their own."""
    assert cluster.network is not None, "events of links are checked"
    changed = [EndpointLink.model_construct(at=(host,), bandwidth_Bps=bandwidth_Bps) for host, bandwidth_Bps in links]
    network = cluster.network.model_copy(update={"exceptions": (*cluster.network.exceptions, *changed)})
    network.check(cluster.nodes)
    return cluster.model_copy(update={"network": network})
