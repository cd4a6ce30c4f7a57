"""Randomly drawn scenarios, in groups that differ only in their strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from pydantic import TypeAdapter

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.validator.experiments.proving.families import (
    ELEMENT_BYTES,
    FAMILIES_A_GROUP,
    Compute,
    Limits,
    communicates,
    drawn_model,
    microbatches_on,
    suitable_families,
)

# Function from a link rate in bytes/s, for emulated or real compute, to the cluster.
ClusterAt = Callable[[float, Compute], Cluster]

_ATTEMPTS: Final = 1000
_STEPS: Final = 4
_WARMUP_STEPS: Final = 1
# Draws after which other numbers of hosts are tried: few strategies suit many hosts.
_PATIENCE: Final = 20
# Seconds of one all-reduce of all gradients, from which the links' rate follows.
_SUM_S: Final = (0.2, 1.0)
# Ratio of the time of a microbatch's message to that of a stage's pass, from which the emulated devices' speed follows.
_MESSAGE_SHARE: Final = (0.7, 1.8)
_PACES: Final = (0.1, 100.0)
# Ranks that compute share this machine's cores; more of them would mostly wait for one another.
_HOSTS: Final[Mapping[Compute, Sequence[int]]] = {"paced": (2, 3, 4, 5, 6, 8, 8), "real": (2, 2, 3)}
_MODEL: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)


@dataclass(frozen=True)
class ProvingCase:
    """A scenario and its prediction. group: of scenarios that differ only in their strategy. family: of strategies. rate_Bps:
    limit of the lab's links; the scenario's cluster gives the payload rate."""

    scenario: Scenario
    predicted: Run
    group: str
    family: str
    rate_Bps: float


@dataclass(frozen=True)
class Draw:
    """Parameters of a draw of cases. groups: number of groups by kind of compute. most_hosts: of a case, servers included.
    longest_step_s: of predictions. cluster_at: the cluster with links of a given rate. hosts: numbers of hosts that train, of
    which one is drawn for each group. prefix: of the names of groups."""

    seed: int | str
    groups: Mapping[Compute, int]
    most_hosts: int
    longest_step_s: float
    cluster_at: ClusterAt
    hosts: Mapping[Compute, Sequence[int]] = field(default_factory=lambda: _HOSTS)
    prefix: str = ""

    def cases(self) -> Iterator[ProvingCase]:
        """The cases, always the same for the same parameters. Raises InputError if no case is suitable."""
        for compute, count in self.groups.items():
            random = Random(f"{self.seed} {compute}")  # noqa: S311 - a draw that can be repeated
            for number in range(1, count + 1):
                yield from self._group(random, f"{self.prefix}{compute}-{number}", compute)

    def _group(self, random: Random, name: str, compute: Compute) -> list[ProvingCase]:
        """Draws until all strategies of a group are suitable."""
        for attempt in range(_ATTEMPTS):
            if attempt % _PATIENCE == 0:
                hosts = random.choice([count for count in self.hosts[compute] if count <= self.most_hosts])
            cases = self._drawn(random, name, compute, hosts)
            if cases and all(communicates(case.scenario, case.predicted) for case in cases):
                return [replace(case, predicted=predict(case.scenario)) for case in cases]
        raise InputError("no drawn strategies communicate enough to be scored; give another --seed, or more --hosts")

    def _drawn(self, random: Random, name: str, compute: Compute, hosts: int) -> list[ProvingCase]:
        """One draw; empty if too few families are suitable. hosts: number that train; servers have additional hosts."""
        model, samples = drawn_model(random, hosts), hosts * random.choice((4, 8))
        layers = _MODEL.validate_python(model).build_layers()
        size_bytes = ELEMENT_BYTES * sum(layer.parameters for layer in layers)
        rate_Bps = 2 * (1 - 1 / hosts) * size_bytes / _log_uniform(random, *_SUM_S)
        share = _log_uniform(random, *_MESSAGE_SHARE)

        def at(factor: float) -> Cluster:
            """The cluster with links, and emulated compute, slowed by a factor."""
            cluster = self.cluster_at(rate_Bps / factor, compute)
            if compute == "real":
                return cluster
            device_factor = _device_factor(layers, cluster, samples, hosts, share)
            return slowed(cluster, {"device": min(max(device_factor, _PACES[0]), _PACES[1])})

        common = {"model": model, "batch": {"total": samples}, "steps": _STEPS, "compute": compute}
        common["training"] = {"warmup_steps": _WARMUP_STEPS}
        limits = Limits(self.most_hosts, self.longest_step_s)
        scaled = compute == "paced"
        chosen, (least, most) = suitable_families(random, common | {"cluster": at(1.0)}, hosts, limits, scaled)
        if len(chosen) < FAMILIES_A_GROUP:
            return []
        factor = _log_uniform(random, least, most) if scaled else 1.0
        common["cluster"] = at(factor)
        cases = []
        for family, strategy in chosen.items():
            scenario = Scenario.model_validate(common | {"name": f"{name}-{family.replace(' ', '-')}", "strategy": strategy})
            cases.append(ProvingCase(scenario, timed(scenario), name, family, rate_Bps / factor))
        return cases


def _device_factor(layers: Sequence[Layer], cluster: Cluster, samples: int, hosts: int, share: float) -> float:
    """Slowdown factor of the device with which a microbatch's message takes `share` times as long as a stage's pass."""
    job = Job(layers, cluster, samples, "fp32", "sgd")
    assert cluster.network is not None
    costs = job.costs(microbatches_on(hosts))
    pass_s = float((costs.forward_s + costs.backward_s).sum()) / (2 * hosts)
    return float(costs.output_bytes.max()) / cluster.network.bandwidth_Bps / share / pass_s


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
