"""Cases: scenarios drawn from a seed, in groups that differ by their strategy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal

from simulator.cluster import Cluster
from simulator.errors import FieldError, InputError
from simulator.predict import predict
from simulator.run import Run
from simulator.scenario import Scenario
from validator.checks import check_trainable
from validator.hosts import needed_nodes

Compute = Literal["paced", "real"]
# The cluster with links of so many bytes per second, for paced or for real compute.
ClusterAt = Callable[[float, Compute], Cluster]

# Of a paced case's step the least that is exposed communication, since that is what is scored.
LEAST_EXPOSED: Final = 0.4
FAMILIES_A_GROUP: Final = 4
_STEPS: Final = 8
_LONGEST_STEP_S: Final = 0.8
_SHORTEST_STEP_S: Final = 0.05
_ATTEMPTS: Final = 10_000
# Links that two cores keep full over eight hosts.
_SLOWEST_Bps, _FASTEST_Bps = 50e6 / 8, 300e6 / 8
# Ranks that compute share this machine's cores; beside two they would mostly wait for one another.
_MOST_REAL_HOSTS: Final = 3


@dataclass(frozen=True)
class Case:
    """A scenario and what is predicted. group: of scenarios that differ by their strategy alone. family: of strategies."""

    scenario: Scenario
    predicted: Run
    group: str
    family: str


def _families(hosts: int, chunks: int) -> dict[str, dict[str, Any]]:
    """Strategies on so many hosts, by family."""
    microbatches = 2 * hosts
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


def draw(seed: int, groups: Mapping[Compute, int], most_hosts: int, cluster_at: ClusterAt) -> Iterator[Case]:
    """The cases of so many groups of either kind, the same for the same seed and cluster.

    Raises InputError where none fit.
    """
    for compute, count in groups.items():
        random = Random(f"{seed} {compute}")  # noqa: S311 - a draw that can be repeated
        for number in range(1, count + 1):
            most = min(most_hosts, _MOST_REAL_HOSTS) if compute == "real" else most_hosts
            yield from _group(random, f"{compute}-{number}", compute, random.randint(2, most), most_hosts, cluster_at)


def _group(random: Random, name: str, compute: Compute, hosts: int, most_hosts: int, cluster_at: ClusterAt) -> list[Case]:
    """Draws until there is a group of strategies that all suit."""
    for _ in range(_ATTEMPTS):
        cases = _drawn(random, name, compute, hosts, most_hosts, cluster_at)
        if len(cases) == FAMILIES_A_GROUP:
            return [replace(case, predicted=predict(case.scenario)) for case in cases]
    raise InputError(f"no strategies on {hosts} hosts communicate enough to be scored; give another --seed, or more --hosts")


def _drawn(random: Random, name: str, compute: Compute, hosts: int, most_hosts: int, cluster_at: ClusterAt) -> list[Case]:
    """One draw; as far as its families suit. hosts: that train; servers have hosts of their own beside those."""
    rate_Bps = math.exp(random.uniform(math.log(_SLOWEST_Bps), math.log(_FASTEST_Bps)))
    alike = {
        "model": _model(random, hosts),
        "cluster": cluster_at(rate_Bps, compute),
        "batch": {"total": hosts * random.choice((4, 8, 16))},
        "steps": _STEPS,
        "compute": compute,
    }
    cases = []
    for family, strategy in random.sample(sorted(_families(hosts, 2).items()), FAMILIES_A_GROUP):
        scenario = {"name": f"{name}-{family.replace(' ', '-')}", "strategy": strategy, **alike}
        case = _case(name, family, scenario)
        if case is None or needed_nodes(case.scenario) > most_hosts:
            break
        cases.append(case)
    return cases


def _model(random: Random, hosts: int) -> dict[str, Any]:
    if random.random() < 0.25:
        return {"kind": "mlp", "inputs": 256, "hidden": random.choice((384, 512, 768)), "layers": 2 * hosts, "outputs": 64}
    return {
        "kind": "gpt",
        "layers": max(2 * hosts, random.choice((4, 6, 8))),
        "hidden": random.choice((96, 128, 192, 256)),
        "heads": 4,
        "vocabulary": random.choice((256, 512)),
        "sequence": random.choice((32, 64, 128)),
    }


def _case(group: str, family: str, described: Mapping[str, Any]) -> Case | None:
    """None where the strategy does not suit, or its step is too short, too long, or computes too much."""
    try:
        scenario = Scenario.model_validate(described)
        check_trainable(scenario)
    except (FieldError, InputError):
        return None
    predicted = predict(scenario, interval=False)
    exposed = predicted.breakdown_s["exposed_communication"] / predicted.step_time_s
    long_enough = _SHORTEST_STEP_S <= predicted.step_time_s <= _LONGEST_STEP_S
    if not long_enough or (scenario.compute == "paced" and exposed < LEAST_EXPOSED):
        return None
    return Case(scenario, predicted, group, family)
