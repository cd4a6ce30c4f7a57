"""Cases: scenarios drawn from a seed, in groups that differ by their strategy alone."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal

import numpy as np
from pydantic import TypeAdapter

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.validator.launch.hosts import needed_nodes
from scaleproof.validator.launch.preflight.checks import check_trainable

Compute = Literal["paced", "real"]
# The cluster with links of so many bytes per second, for paced or for real compute.
ClusterAt = Callable[[float, Compute], Cluster]

# Of a paced case's step the least that is exposed communication, since that is what is scored.
LEAST_EXPOSED: Final = 0.4
FAMILIES_A_GROUP: Final = 4
_STEPS: Final = 4
_WARMUP_STEPS: Final = 1
_SHORTEST_STEP_S: Final = 0.3
_ATTEMPTS: Final = 1000
# Draws after which a group is tried on other hosts: few strategies suit many.
_PATIENCE: Final = 20
# What summing all gradients once takes over a drawn link, to which its rate is set.
_SUM_S: Final = (0.2, 1.0)
# How many times as long as a stage's pass a microbatch's message takes, to which paced devices are set.
_MESSAGE_SHARE: Final = (0.7, 1.8)
_PACES: Final = (0.1, 100.0)
# What a pass or a message of a paced run costs a core in torch, Python and the kernel (netlab-1f1b keeps a third of two cores
# of a virtual machine busy with 290 a second), and what moving a rank's parameters through memory does, which optimizers and
# buckets do some eight times a step at 4 GB/s. Where that is more than a part of what cores can do, ranks are late, all the
# more while a virtual machine's host has cores do something else: a sleeper that wakes up then is milliseconds late.
_EACH_S: Final = 1.2e-3
_EACH_BYTE_S: Final = 8 / 4e9
# A message keeps 0.16 cores busy at 24 MB/s, both of its ends together (`cores_busy` of such a lab).
_MOVED_BYTE_S: Final = 0.16 / 24e6
_BUSY: Final = 0.12
# A lab's link hands on 18 kB at once after it was idle, which no description of a link has: messages are large beside that.
_LEAST_MESSAGE_BYTES: Final = 250e3
# Ranks that compute share this machine's cores; more of them would mostly wait for one another.
_HOSTS: Final[Mapping[Compute, Sequence[int]]] = {"paced": (2, 3, 4, 5, 6, 8, 8), "real": (2, 2, 3)}
# So that strategies of a group differ, few of them are of one kind.
_MOST_ALIKE: Final = 2
_MODEL: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)
_ELEMENT_BYTES: Final = 4
_KINDS: Final = {"pipeline": "staged", "hybrid": "staged", "parameter_server": "served"}
_CORES: Final = os.cpu_count() or 1


@dataclass(frozen=True)
class ProvingCase:
    """A scenario and what is predicted. group: of scenarios that differ by their strategy alone. family: of strategies.
    rate_Bps: that the lab's links are limited to, of which the scenario's cluster says what payload gets."""

    scenario: Scenario
    predicted: Run
    group: str
    family: str
    rate_Bps: float


def _microbatches(hosts: int) -> int:
    return 4 if hosts < 4 else hosts


def _families(hosts: int, chunks: int) -> dict[str, dict[str, Any]]:
    """Strategies on so many hosts, by family."""
    microbatches = _microbatches(hosts)
    found: dict[str, dict[str, Any]] = {
        "ring": {"kind": "data_parallel", "workers": hosts, "algorithm": "ring", "overlap": False},
        "ddp": {"kind": "data_parallel", "workers": hosts, "bucket": "2 MiB"},
        "ddp after": {"kind": "data_parallel", "workers": hosts, "bucket": "4 MiB", "overlap": False},
        "gather": {"kind": "gather_average", "workers": hosts},
        "local sgd": {"kind": "local_sgd", "workers": hosts, "period": 2},
        "1 server": {"kind": "parameter_server", "workers": hosts, "servers": 1},
        "2 servers": {"kind": "parameter_server", "workers": hosts, "servers": 2},
        "gpipe": {"kind": "pipeline", "stages": hosts, "microbatches": microbatches, "schedule": "gpipe"},
        "1f1b": {"kind": "pipeline", "stages": hosts, "microbatches": microbatches, "schedule": "1f1b"},
        "interleaved": {
            "kind": "pipeline", "stages": hosts, "microbatches": microbatches, "chunks": chunks, "schedule": "interleaved_1f1b",
            "overlap_sends": True,
        },
    }  # fmt: skip
    if hosts >= 4 and hosts % 2 == 0:
        found["hybrid"] = {"kind": "hybrid", "workers": hosts // 2, "stages": 2, "microbatches": 4}
    return found


@dataclass(frozen=True)
class Draw:
    """What cases are drawn from. groups: how many of either kind. most_hosts: of a case, servers included. longest_step_s: of
    what is predicted. cluster_at: the cluster with links of a rate."""

    seed: int
    groups: Mapping[Compute, int]
    most_hosts: int
    longest_step_s: float
    cluster_at: ClusterAt

    def cases(self) -> Iterator[ProvingCase]:
        """The same for the same draw. Raises InputError where none fit."""
        for compute, count in self.groups.items():
            random = Random(f"{self.seed} {compute}")  # noqa: S311 - a draw that can be repeated
            for number in range(1, count + 1):
                yield from self._group(random, f"{compute}-{number}", compute)

    def _group(self, random: Random, name: str, compute: Compute) -> list[ProvingCase]:
        """Draws until there is a group of strategies that all suit."""
        for attempt in range(_ATTEMPTS):
            if attempt % _PATIENCE == 0:
                hosts = random.choice([count for count in _HOSTS[compute] if count <= self.most_hosts])
            cases = self._drawn(random, name, compute, hosts)
            if cases and all(_communicates(case.scenario, case.predicted) for case in cases):
                return [replace(case, predicted=predict(case.scenario)) for case in cases]
        raise InputError("no strategies communicate enough to be scored; give another --seed, or more --hosts")

    def _drawn(self, random: Random, name: str, compute: Compute, hosts: int) -> list[ProvingCase]:
        """One draw; nothing where too few families suit. hosts: that train; servers have hosts of their own beside those."""
        model, samples = _model(random, hosts), hosts * random.choice((4, 8))
        layers = _MODEL.validate_python(model).build_layers()
        size_bytes = _ELEMENT_BYTES * sum(layer.parameters for layer in layers)
        rate_Bps = 2 * (1 - 1 / hosts) * size_bytes / _log_uniform(random, *_SUM_S)
        share = _log_uniform(random, *_MESSAGE_SHARE)

        def at(slower: float) -> Cluster:
            """With links, and paced compute, so many times as slow."""
            cluster = self.cluster_at(rate_Bps / slower, compute)
            if compute == "real":
                return cluster
            slowness = _slowness(layers, cluster, samples, hosts, share)
            return slowed(cluster, {"device": min(max(slowness, _PACES[0]), _PACES[1])})

        alike = {"model": model, "batch": {"total": samples}, "steps": _STEPS, "compute": compute}
        alike["training"] = {"warmup_steps": _WARMUP_STEPS}
        chosen, (least, most) = self._chosen(random, alike | {"cluster": at(1.0)}, hosts)
        if len(chosen) < FAMILIES_A_GROUP:
            return []
        slower = _log_uniform(random, least, most) if compute == "paced" else 1.0
        alike["cluster"] = at(slower)
        cases = []
        for family, strategy in chosen.items():
            scenario = Scenario.model_validate(alike | {"name": f"{name}-{family.replace(' ', '-')}", "strategy": strategy})
            cases.append(ProvingCase(scenario, timed(scenario), name, family, rate_Bps / slower))
        return cases

    def _chosen(self, random: Random, alike: Mapping[str, Any], hosts: int) -> tuple[dict[str, Any], tuple[float, float]]:
        """Strategies by family that suit together, and how many times as slow links and compute may be that all suit."""
        families = sorted(_families(hosts, 2).items())
        chosen: dict[str, Any] = {}
        alike_kinds: Counter[str] = Counter()
        both = (0.0, math.inf) if alike["compute"] == "paced" else (1.0, 1.0)
        for family, strategy in random.sample(families, len(families)):
            kind = _KINDS.get(strategy["kind"], "summing")
            if len(chosen) == FAMILIES_A_GROUP or alike_kinds[kind] == _MOST_ALIKE:
                continue
            if (own := self._suits(dict(alike) | {"strategy": strategy})) is None:
                continue
            together = max(both[0], own[0]), min(both[1], own[1])
            if together[0] <= together[1]:
                chosen[family], both = strategy, together
                alike_kinds[kind] += 1
        return chosen, both

    def _suits(self, described: Mapping[str, Any]) -> tuple[float, float] | None:
        """How many times as slow links and compute may be; None where the strategy does not suit, communicates too little, or
        this machine's cores would be the limit in the longest step."""
        try:
            scenario = Scenario.model_validate(described)
            check_trainable(scenario)
        except (FieldError, InputError):
            return None
        if needed_nodes(scenario) > self.most_hosts:
            return None
        program = scenario.strategy.compile(scenario.job())
        if (program.amount[program.kind == Kind.TRANSFER] < _LEAST_MESSAGE_BYTES).any():
            return None
        is_paced = scenario.compute == "paced"
        least_s = max(_SHORTEST_STEP_S, _handled_s(scenario, program) / (_BUSY * _CORES) if is_paced else 0.0)
        if least_s > self.longest_step_s:
            return None
        predicted = timed(scenario)
        if not _communicates(scenario, predicted):
            return None
        return least_s / predicted.step_time_s, self.longest_step_s / predicted.step_time_s


def _communicates(scenario: Scenario, predicted: Run) -> bool:
    """As much as is scored, where compute is paced."""
    return scenario.compute == "real" or predicted.breakdown_s["exposed_communication"] >= LEAST_EXPOSED * predicted.step_time_s


def _slowness(layers: Sequence[Layer], cluster: Cluster, samples: int, hosts: int, share: float) -> float:
    """What to slow the device by, so that a microbatch's message takes `share` times as long as a stage's pass."""
    job = Job(layers, cluster, samples, "fp32", "sgd")
    assert cluster.network is not None
    costs = job.costs(_microbatches(hosts))
    pass_s = float((costs.forward_s + costs.backward_s).sum()) / (2 * hosts)
    return float(costs.output_bytes.max()) / cluster.network.bandwidth_Bps / share / pass_s


def _handled_s(scenario: Scenario, program: Program) -> float:
    """Seconds of this machine's cores that a step of a paced run takes: every pass, both ends of every message, every byte."""
    kinds = [program.kind == Kind.TRANSFER, program.kind == Kind.COLLECTIVE]
    ends = np.select(kinds, [2, program.members.counts], 1)
    moved_bytes = np.select(kinds, [program.amount, program.amount * program.members.counts], 0.0)
    each_s = ends * _EACH_S + moved_bytes * _MOVED_BYTE_S
    handled_s = float((each_s * program.ranks.multiplicity[program.rank]).sum()) / scenario.strategy.program_steps
    parameters = sum(layer.parameters for layer in scenario.model.build_layers())
    return handled_s + 4 * parameters * scenario.strategy.workers * _EACH_BYTE_S


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def _model(random: Random, hosts: int) -> dict[str, Any]:
    if random.random() < 0.2:
        return {"kind": "mlp", "inputs": 128, "hidden": random.choice((128, 192, 256)), "layers": 2 * hosts, "outputs": 64}
    return {
        "kind": "gpt",
        "layers": max(2 * hosts, random.choice((4, 6, 8))),
        "hidden": random.choice((64, 96, 128)),
        "heads": 4,
        "vocabulary": random.choice((128, 256)),
        "sequence": random.choice((128, 256)),
    }
