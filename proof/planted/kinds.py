"""Kinds of faults and their draws: a scenario, what is wrong in the lab, and the words with which reconcile should name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.perturbations import EVEN, Perturbations
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.scenario.schema import Scenario

_CLUSTER: Final[dict[str, Any]] = {"nodes": 8, "node": {"cores": 2}, "collectives": {"library": "gloo"}}
_STEPS: Final = 4
# Steps of faults that come and go.
_MORE_STEPS: Final = 12


class Lateness(NamedTuple):
    """Seconds for which a rank waits in every step of a number of steps, before a phase: its input is late before INPUT."""

    seconds: float
    every: int = 1
    before: Phase = Phase.INPUT


@dataclass(frozen=True)
class PlantedFault:
    """A drawn fault.

    kind: its name. scenario: as it is described, without the fault. words: begin of the sentence that names the fault.

    rate: of the link of `host`, in both directions, relative to the described one; of all links if host is None. upload: of
    what `host` sends alone; only half of the time, at random, if `stalls`. traffic: share of the host's link that others take.
    busy: rank that is bound to a core that other work uses, while the other ranks share another core. on_s: bounds of the time
    for which that work lasts, and for which it pauses; it never pauses if None. unevenness: of emulated compute. late: by rank.
    """

    kind: str
    seed: int
    scenario: Scenario
    words: str
    host: int | None = None
    rate: float = 1.0
    upload: float = 1.0
    stalls: bool = False
    traffic: float = 0.0
    busy: int | None = None
    on_s: tuple[float, float] | None = None
    unevenness: Perturbations = EVEN
    late: Mapping[int, Lateness] = field(default_factory=dict)

    @property
    def without(self) -> PlantedFault:
        """The same run without the fault."""
        return PlantedFault(self.kind, self.seed, self.scenario, self.words)


def drawn(kind: str, seed: int) -> PlantedFault:
    """The fault of a kind with a seed, always the same."""
    random = Random(f"{kind} {seed}")  # noqa: S311 - a draw that can be repeated
    return KINDS[kind](kind, seed, random)


def scenario_of(
    kind: str,
    seed: int,
    strategy: dict[str, Any],
    model: dict[str, Any],
    rate_Mbit: float,
    rate_GFLOPs: float = 50,
    memory_GBps: float = 3,
    **more: Any,
) -> Scenario:
    """A scenario of a lab. rate_Mbit: of links, Mbit/s. rate_GFLOPs, memory_GBps: of emulated compute, GFLOP/s and GB/s. Memory
    is so slow, unless it is given, that updates are a good part of a step."""
    device: dict[str, Any] = {"name": "a core", "memory": "8 GiB", "memory_bandwidth": f"{memory_GBps} GB/s"}
    device |= {"peak": {"fp32": f"{rate_GFLOPs} GFLOP/s"}}
    network = {"bandwidth": f"{rate_Mbit} Mbit/s", "latency": "60 us"}
    fields = {
        "name": f"{kind.replace(' ', '-')}-{seed}",
        "model": model,
        "cluster": _CLUSTER | {"network": network, "device": device},
        "strategy": strategy,
        "batch": {"total": 8},
        "training": {"optimizer": "adam", "warmup_steps": 1},
        "steps": _STEPS,
        "compute": "paced",
    }
    return Scenario.model_validate(fields | more)


def _deep(random: Random) -> dict[str, Any]:
    """A model whose stages exchange large activations."""
    hidden = random.choice((96, 128))
    common = {"layers": 10, "hidden": hidden, "heads": 4, "vocabulary": 256, "sequence": random.choice((64, 96))}
    return random.choice(({"kind": "gpt"}, {"kind": "llama", "key_heads": 2, "feedforward": 2 * hidden})) | common


def _wide(random: Random) -> dict[str, Any]:
    """A model whose layers compute for long: a process that mostly sleeps gets a full core even of a busy one."""
    width = random.choice((896, 1024))
    return {"kind": "mlp", "layers": 6, "inputs": width, "hidden": width, "outputs": width}


def _in_turn(random: Random, stages: int) -> dict[str, Any]:
    """Stages that take turns, so that ranks do not delay one another and messages are sent one at a time."""
    pipeline = {"kind": "pipeline", "stages": stages, "microbatches": 1, "schedule": "gpipe"}
    return random.choice((pipeline, {"kind": "model_parallel", "stages": stages}))


def _on_a_link(kind: str, seed: int, random: Random, words: str, **fault: Any) -> PlantedFault:
    """A fault of the link of one of four or five stages."""
    stages = random.choice((4, 5))
    host = random.randrange(stages)
    scenario = scenario_of(kind, seed, _in_turn(random, stages), _deep(random), random.choice((30, 40, 60)))
    return PlantedFault(kind, seed, scenario, words.format(host), host=host, **fault)


def _slow_link(kind: str, seed: int, random: Random) -> PlantedFault:
    return _on_a_link(kind, seed, random, "messages from and to stage {} run at", rate=random.uniform(0.35, 0.6))


def _slow_upload(kind: str, seed: int, random: Random) -> PlantedFault:
    return _on_a_link(kind, seed, random, "messages from stage {} run at", upload=random.uniform(0.35, 0.6))


def _traffic(kind: str, seed: int, random: Random) -> PlantedFault:
    return _on_a_link(kind, seed, random, "messages from and to stage {} run at", traffic=random.uniform(0.45, 0.65))


def _wrong_description(kind: str, seed: int, random: Random) -> PlantedFault:
    """All links carry less than the cluster's description says."""
    workers = random.choice((3, 4))
    strategy = random.choice(
        (
            {"kind": "data_parallel", "workers": workers, "overlap": False, "bucket": "1 MiB"},
            {"kind": "data_parallel", "workers": workers, "algorithm": "ring", "overlap": False},
            {"kind": "parameter_server", "workers": workers, "servers": 2},
            _in_turn(random, workers),
        )
    )
    scenario = scenario_of(kind, seed, strategy, _deep(random), random.choice((80, 100)), batch={"total": 2 * workers})
    return PlantedFault(kind, seed, scenario, "communication on all links runs at", rate=random.uniform(0.35, 0.6))


def _on_a_core(kind: str, seed: int, random: Random, words: str, **fault: Any) -> PlantedFault:
    """A fault of the core of one of three stages, which compute."""
    stages = 3
    busy = random.randrange(stages)
    more: dict[str, Any] = {"compute": "real", "batch": {"total": 512}, "steps": _MORE_STEPS}
    scenario = scenario_of(kind, seed, _in_turn(random, stages), _wide(random), 1000, **more)
    return PlantedFault(kind, seed, scenario, words.format(busy), busy=busy, **fault)


def _busy_host(kind: str, seed: int, random: Random) -> PlantedFault:
    return _on_a_core(kind, seed, random, "compute of stage {} takes")


def _intermittent_work(kind: str, seed: int, random: Random) -> PlantedFault:
    return _on_a_core(kind, seed, random, "compute of stage {} varies", on_s=(1.0, 2.5))


def _slow_server(kind: str, seed: int, random: Random) -> PlantedFault:
    """One of two or three servers takes several times as long for its updates."""
    workers, servers = random.choice((2, 3)), random.choice((2, 3))
    slow = random.randrange(servers)
    strategy = {"kind": "parameter_server", "workers": workers, "servers": servers}
    scenario = scenario_of(kind, seed, strategy, _wide(random), 1000, batch={"total": 4 * workers})
    words = f"updates on server {slow} take"
    straggler = {"ranks": workers + slow, "slowdown": random.uniform(2.0, 4.0)}
    return PlantedFault(kind, seed, scenario, words, unevenness=Perturbations.model_validate({"stragglers": [straggler]}))


def _slow_loading(kind: str, seed: int, random: Random) -> PlantedFault:
    """One worker waits for each of its batches."""
    workers = random.choice((3, 4))
    late = random.randrange(workers)
    strategy = random.choice(
        (
            {"kind": "data_parallel", "workers": workers, "overlap": False},
            {"kind": "data_parallel", "workers": workers, "bucket": "1 MiB"},
            {"kind": "parameter_server", "workers": workers, "servers": 2},
        )
    )
    scenario = scenario_of(kind, seed, strategy, _deep(random), 200, batch={"total": 2 * workers})
    words = f"worker {late} waits for its samples"
    return PlantedFault(kind, seed, scenario, words, late={late: Lateness(random.uniform(0.05, 0.2))})


KINDS: Final[Mapping[str, Callable[[str, int, Random], PlantedFault]]] = {
    "slow link": _slow_link,
    "slow upload": _slow_upload,
    "others' traffic": _traffic,
    "wrong description": _wrong_description,
    "busy core": _busy_host,
    "intermittent work": _intermittent_work,
    "slow server": _slow_server,
    "slow loading": _slow_loading,
}
