"""Randomly drawn scenarios, in groups that differ only in their strategy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from pydantic import TypeAdapter

from scaleproof.proof.proving.catalogue import MEASURABLE, Catalogue
from scaleproof.proof.proving.families import (
    ELEMENT_BYTES,
    FAMILIES_A_GROUP,
    Limits,
    communicates,
    described,
    suitable_families,
)
from scaleproof.proof.proving.models import Compute
from scaleproof.proof.proving.strategies import microbatches_on
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job

# Function from a link rate in bytes/s, for emulated or real compute, to the cluster.
ClusterAt = Callable[[float, Compute], Cluster]

_ATTEMPTS: Final = 1000
_STEPS: Final = 4
_WARMUP_STEPS: Final = 1
# Seconds of one all-reduce of all gradients, from which the links' rate follows.
_SUM_S: Final = (0.2, 1.0)
# Ratio of the time of a microbatch's message to that of a stage's pass, from which the emulated devices' speed follows.
_MESSAGE_SHARE: Final = (0.7, 1.8)
# The same of a worker's passes to that of one all-reduce.
_COMPUTE_SHARE: Final = (0.1, 0.9)
_PACES: Final = (0.1, 100.0)
# Ranks that compute share this machine's cores; more of them would mostly wait for one another.
_HOSTS: Final[Mapping[Compute, Sequence[int]]] = {"paced": (2, 3, 4, 5, 6, 8, 8, 12, 16), "real": (2, 2, 3, 4)}
# Rate of a link below which a frame takes tens of milliseconds.
_LEAST_Bps: Final = 0.4e6
# Rate of all links together that leaves the cores time for other work than moving bytes; where ranks exchange data within
# passes, links are busy most of the time. Two cores that move 100 MB/s are busy for 40 % of the time.
_MOST_Bps: Final = 200e6
_MOST_WITHIN_PASSES_Bps: Final = 40e6
_MODEL: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)


@dataclass(frozen=True)
class ProvingCase:
    """A scenario and its prediction. group: of scenarios that differ only in their strategy. family: of strategies. rate_Bps:
    limit of the lab's links; the scenario's cluster gives the payload rate. model, network: families of both."""

    scenario: Scenario
    predicted: Run
    group: str
    family: str
    rate_Bps: float
    model: str = ""
    network: str = ""


@dataclass(frozen=True)
class Draw:
    """Parameters of a draw of cases. groups: number of groups by kind of compute. most_hosts: of a case, servers included.
    longest_step_s: of predictions. cluster_at: the cluster with links of a given rate. hosts: numbers of hosts that train, of
    which one is drawn for each group. prefix: of the names of groups. catalogue: what is drawn from."""

    seed: int | str
    groups: Mapping[Compute, int]
    most_hosts: int
    longest_step_s: float
    cluster_at: ClusterAt
    hosts: Mapping[Compute, Sequence[int]] = field(default_factory=lambda: _HOSTS)
    prefix: str = ""
    catalogue: Catalogue = MEASURABLE

    def cases(self) -> Iterator[ProvingCase]:
        """The cases, always the same for the same parameters. Raises InputError if no case is suitable."""
        for compute, count in self.groups.items():
            random = Random(f"{self.seed} {compute}")  # noqa: S311 - a draw that can be repeated
            seen: Counter[str] = Counter()
            for number in range(1, count + 1):
                group = self._group(random, seen, f"{self.prefix}{compute}-{number}", compute)
                seen.update([group[0].model, group[0].network, *(case.family for case in group)])
                yield from group

    def _group(self, random: Random, seen: Counter[str], name: str, compute: Compute) -> list[ProvingCase]:
        """Draws until all strategies of a group are suitable. seen: numbers of earlier models, networks and strategies by
        name, of which rare ones are preferred."""
        for attempt in range(_ATTEMPTS):
            if attempt % self.catalogue.patience == 0:
                hosts = random.choice([count for count in self.hosts[compute] if count <= self.most_hosts])
            cases = self._drawn(random, seen, name, compute, hosts)
            if cases and all(communicates(case.scenario, case.predicted) for case in cases):
                return [replace(case, predicted=predict(case.scenario)) for case in cases]
        raise InputError("no drawn strategies communicate enough to be scored; give another --seed, or more --hosts")

    def _drawn(self, random: Random, seen: Counter[str], name: str, compute: Compute, hosts: int) -> list[ProvingCase]:
        """One draw; empty if too few families are suitable. hosts: number that train; servers have additional hosts."""
        model_family, model = self.catalogue.model(random, hosts, seen)
        samples = hosts * random.choice((4, 8))
        layers = _MODEL.validate_python(model).build_layers()
        size_bytes = ELEMENT_BYTES * sum(layer.parameters for layer in layers)
        rate_Bps = min(2 * (1 - 1 / hosts) * size_bytes / _log_uniform(random, *_SUM_S), _MOST_Bps / hosts)
        share = _log_uniform(random, *_MESSAGE_SHARE)
        network = self.catalogue.network(random, hosts, compute, seen)
        compute_share = _log_uniform(random, *_COMPUTE_SHARE) if compute == "paced" else 0.0

        def at(factor: float) -> Cluster:
            """The cluster with links, and emulated compute, slowed by a factor."""
            cluster = network.shaped(self.cluster_at(rate_Bps / factor, compute))
            if compute == "real":
                return cluster
            job = Job(layers, cluster, samples, "fp32", "sgd")
            factor = max(_staged_factor(job, hosts, share), _summing_factor(job, size_bytes, hosts, compute_share))
            return slowed(cluster, {"device": min(max(factor, _PACES[0]), _PACES[1])})

        common = {"model": model, "batch": {"total": samples}, "steps": _STEPS, "compute": compute}
        common["training"] = {"warmup_steps": _WARMUP_STEPS, **self.catalogue.training(random)}
        common["unevenness"] = network.unevenness
        limits = Limits(self.most_hosts, self.longest_step_s)
        scaled = compute == "paced"
        families = self.catalogue.families(random, hosts, samples)
        if not network.equal:
            families = [family for family in families if not family.within_passes]
        if self.catalogue.mixes:
            families.sort(key=lambda family: seen[family.name])
        chosen, (least, most) = suitable_families(families, common | {"cluster": at(1.0)}, limits, scaled)
        if len(chosen) < FAMILIES_A_GROUP:
            return []
        factor = _log_uniform(random, least, most) if scaled else 1.0
        most_Bps = _MOST_WITHIN_PASSES_Bps / hosts if any(family.within_passes for family in chosen) else math.inf
        if scaled and not _LEAST_Bps <= rate_Bps / factor <= most_Bps:
            return []
        common["cluster"] = at(factor)
        cases = []
        for family in chosen:
            fields = described(common, family) | {"name": f"{name}-{family.name.replace(' ', '-')}"}
            scenario = Scenario.model_validate(fields)
            drawn = ProvingCase(scenario, timed(scenario), name, family.name, rate_Bps / factor, model_family, network.name)
            cases.append(drawn)
        return cases


def _staged_factor(job: Job, hosts: int, share: float) -> float:
    """Slowdown factor of the device with which a microbatch's message takes `share` times as long as a stage's pass."""
    costs = job.costs(microbatches_on(hosts))
    pass_s = float((costs.forward_s + costs.backward_s).sum()) / (2 * hosts)
    return float(costs.output_bytes.max()) / _rate_Bps(job) / share / pass_s


def _summing_factor(job: Job, size_bytes: float, hosts: int, share: float) -> float:
    """Slowdown factor of the device with which passes of a worker take `share` times as long as an all-reduce of gradients."""
    costs = job.costs()
    passes_s = float((costs.forward_s + costs.backward_s).sum()) / hosts
    return share * 2 * (1 - 1 / hosts) * size_bytes / _rate_Bps(job) / passes_s


def _rate_Bps(job: Job) -> float:
    assert job.cluster.network is not None
    return job.cluster.network.bandwidth_Bps


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
