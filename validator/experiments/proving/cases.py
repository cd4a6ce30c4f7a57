"""Randomly drawn scenarios, in groups that differ only in their strategy."""

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
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.launch.preflight.checks import check_trainable

Compute = Literal["paced", "real"]
# Function from a link rate in bytes/s, for emulated or real compute, to the cluster.
ClusterAt = Callable[[float, Compute], Cluster]

# Smallest share of exposed communication in the step of a case with emulated compute, since that is what is scored.
LEAST_EXPOSED: Final = 0.4
FAMILIES_A_GROUP: Final = 4
_STEPS: Final = 4
_WARMUP_STEPS: Final = 1
_SHORTEST_STEP_S: Final = 0.3
_ATTEMPTS: Final = 1000
# Draws after which other numbers of hosts are tried: few strategies suit many hosts.
_PATIENCE: Final = 20
# Seconds of one all-reduce of all gradients, from which the links' rate follows.
_SUM_S: Final = (0.2, 1.0)
# Ratio of the time of a microbatch's message to that of a stage's pass, from which the emulated devices' speed follows.
_MESSAGE_SHARE: Final = (0.7, 1.8)
_PACES: Final = (0.1, 100.0)
# Core time of a pass or a message of a run with emulated compute in torch, Python and the kernel (netlab-1f1b keeps a third of
# two cores of a virtual machine busy with 290 a second), and of moving a byte of a rank's parameters through memory, which
# optimizers and buckets do about eight times a step at 4 GB/s. If that exceeds a share of the cores' time, ranks are late,
# especially while a virtual machine's host uses the cores: a sleeping process then wakes up milliseconds late.
_TASK_S: Final = 1.2e-3
_PARAMETER_BYTE_S: Final = 8 / 4e9
# A message keeps 0.16 cores busy at 24 MB/s, both of its ends together (`cores_busy` of such a lab).
_MOVED_BYTE_S: Final = 0.16 / 24e6
_BUSY: Final = 0.12
# A lab's link passes 18 kB at once after it was idle, which no description of a link includes: messages must be much larger.
_LEAST_MESSAGE_BYTES: Final = 250e3
# Ranks that compute share this machine's cores; more of them would mostly wait for one another.
_HOSTS: Final[Mapping[Compute, Sequence[int]]] = {"paced": (2, 3, 4, 5, 6, 8, 8), "real": (2, 2, 3)}
# Most families of one kind in a group, so that its strategies differ.
_MOST_OF_A_KIND: Final = 2
_MODEL: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)
_ELEMENT_BYTES: Final = 4
_KINDS: Final = {"pipeline": "staged", "hybrid": "staged", "parameter_server": "served"}
_CORES: Final = os.cpu_count() or 1


@dataclass(frozen=True)
class ProvingCase:
    """A scenario and its prediction. group: of scenarios that differ only in their strategy. family: of strategies. rate_Bps:
    limit of the lab's links; the scenario's cluster gives the payload rate."""

    scenario: Scenario
    predicted: Run
    group: str
    family: str
    rate_Bps: float


def _microbatches(hosts: int) -> int:
    return 4 if hosts < 4 else hosts


def _families(hosts: int, chunks: int) -> dict[str, dict[str, Any]]:
    """Strategies on `hosts` hosts, by family."""
    microbatches = _microbatches(hosts)
    strategies: dict[str, dict[str, Any]] = {
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
        strategies["hybrid"] = {"kind": "hybrid", "workers": hosts // 2, "stages": 2, "microbatches": 4}
    return strategies


@dataclass(frozen=True)
class Draw:
    """Parameters of a draw of cases. groups: number of groups by kind of compute. most_hosts: of a case, servers included.
    longest_step_s: of predictions. cluster_at: the cluster with links of a given rate."""

    seed: int
    groups: Mapping[Compute, int]
    most_hosts: int
    longest_step_s: float
    cluster_at: ClusterAt

    def cases(self) -> Iterator[ProvingCase]:
        """The cases, always the same for the same parameters. Raises InputError if no case is suitable."""
        for compute, count in self.groups.items():
            random = Random(f"{self.seed} {compute}")  # noqa: S311 - a draw that can be repeated
            for number in range(1, count + 1):
                yield from self._group(random, f"{compute}-{number}", compute)

    def _group(self, random: Random, name: str, compute: Compute) -> list[ProvingCase]:
        """Draws until all strategies of a group are suitable."""
        for attempt in range(_ATTEMPTS):
            if attempt % _PATIENCE == 0:
                hosts = random.choice([count for count in _HOSTS[compute] if count <= self.most_hosts])
            cases = self._drawn(random, name, compute, hosts)
            if cases and all(_communicates(case.scenario, case.predicted) for case in cases):
                return [replace(case, predicted=predict(case.scenario)) for case in cases]
        raise InputError("no drawn strategies communicate enough to be scored; give another --seed, or more --hosts")

    def _drawn(self, random: Random, name: str, compute: Compute, hosts: int) -> list[ProvingCase]:
        """One draw; empty if too few families are suitable. hosts: number that train; servers have additional hosts."""
        model, samples = _model(random, hosts), hosts * random.choice((4, 8))
        layers = _MODEL.validate_python(model).build_layers()
        size_bytes = _ELEMENT_BYTES * sum(layer.parameters for layer in layers)
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
        chosen, (least, most) = self._chosen(random, common | {"cluster": at(1.0)}, hosts)
        if len(chosen) < FAMILIES_A_GROUP:
            return []
        factor = _log_uniform(random, least, most) if compute == "paced" else 1.0
        common["cluster"] = at(factor)
        cases = []
        for family, strategy in chosen.items():
            scenario = Scenario.model_validate(common | {"name": f"{name}-{family.replace(' ', '-')}", "strategy": strategy})
            cases.append(ProvingCase(scenario, timed(scenario), name, family, rate_Bps / factor))
        return cases

    def _chosen(self, random: Random, common: Mapping[str, Any], hosts: int) -> tuple[dict[str, Any], tuple[float, float]]:
        """Compatible strategies by family, and the range of slowdown factors of links and compute that suits all of them."""
        families = sorted(_families(hosts, 2).items())
        chosen: dict[str, Any] = {}
        kinds: Counter[str] = Counter()
        range_of_all = (0.0, math.inf) if common["compute"] == "paced" else (1.0, 1.0)
        for family, strategy in random.sample(families, len(families)):
            kind = _KINDS.get(strategy["kind"], "summing")
            if len(chosen) == FAMILIES_A_GROUP or kinds[kind] == _MOST_OF_A_KIND:
                continue
            if (own := self._suits(dict(common) | {"strategy": strategy})) is None:
                continue
            narrowed = max(range_of_all[0], own[0]), min(range_of_all[1], own[1])
            if narrowed[0] <= narrowed[1]:
                chosen[family], range_of_all = strategy, narrowed
                kinds[kind] += 1
        return chosen, range_of_all

    def _suits(self, described: Mapping[str, Any]) -> tuple[float, float] | None:
        """Range of suitable slowdown factors of links and compute; None if the strategy is not suitable, communicates too
        little, or is limited by this machine's cores even in the longest step."""
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
    """Whether the scenario communicates enough to be scored; always true for real compute."""
    return scenario.compute == "real" or predicted.breakdown_s["exposed_communication"] >= LEAST_EXPOSED * predicted.step_time_s


def _device_factor(layers: Sequence[Layer], cluster: Cluster, samples: int, hosts: int, share: float) -> float:
    """Slowdown factor of the device with which a microbatch's message takes `share` times as long as a stage's pass."""
    job = Job(layers, cluster, samples, "fp32", "sgd")
    assert cluster.network is not None
    costs = job.costs(_microbatches(hosts))
    pass_s = float((costs.forward_s + costs.backward_s).sum()) / (2 * hosts)
    return float(costs.output_bytes.max()) / cluster.network.bandwidth_Bps / share / pass_s


def _handled_s(scenario: Scenario, program: Program) -> float:
    """Core seconds of a step with emulated compute: all passes, both ends of all messages, all bytes."""
    kinds = [program.kind == Kind.TRANSFER, program.kind == Kind.COLLECTIVE]
    ends = np.select(kinds, [2, program.members.counts], 1)
    moved_bytes = np.select(kinds, [program.amount, program.amount * program.members.counts], 0.0)
    task_s = ends * _TASK_S + moved_bytes * _MOVED_BYTE_S
    handled_s = float((task_s * program.ranks.multiplicity[program.rank]).sum()) / scenario.strategy.program_steps
    parameters = sum(layer.parameters for layer in scenario.model.build_layers())
    return handled_s + 4 * parameters * scenario.strategy.workers * _PARAMETER_BYTE_S


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
