"""Faults of whole jobs, which `diagnose` should name from the job's files: what is planted, and the cause and place to name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from scaleproof.proof.planted.kinds import Lateness, PlantedFault, scenario_of
from scaleproof.simulator.analysis.diagnosis import Cause
from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario

_STEPS: Final = 26
# Of changes that only many steps show.
_MORE_STEPS: Final = 40
_WIDTH: Final = 256
# Of memory, so that updates are a small part of a step.
_MEMORY_GBPS: Final = 20
# Few enough for two cores, on which what is not emulated would delay some of more ranks.
_WORKERS: Final = 4
_STAGES: Final = 5


@dataclass(frozen=True)
class JobFault:
    """A planted fault. expected: causes, each with the ranks that have it; none where all ranks have it. since: number of the
    first step that it affects. healthy: the run without it; if None, the same scenario without what is planted."""

    planted: PlantedFault
    expected: Sequence[tuple[Cause, frozenset[int]]]
    since: int = 1
    healthy: PlantedFault | None = None

    @property
    def without(self) -> PlantedFault:
        """The run without the fault."""
        return self.healthy or self.planted.without


def drawn(kind: str, seed: int) -> JobFault:
    """The fault of a kind with a seed, always the same."""
    random = Random(f"job {kind} {seed}")  # noqa: S311 - a draw that can be repeated
    return KINDS[kind](kind, seed, random)


def _layers(count: int, width: int = _WIDTH) -> dict[str, Any]:
    """A model of equal layers."""
    return {"kind": "mlp", "layers": count, "inputs": width, "hidden": width, "outputs": width}


def _replicas(kind: str, seed: int, random: Random, **more: Any) -> Scenario:
    """Workers that compute for most of their steps."""
    workers = _WORKERS
    strategy = {"kind": "data_parallel", "workers": workers, "overlap": False, "bucket": "8 MiB"} | more.pop("strategy", {})
    fields: dict[str, Any] = {"batch": {"total": 8 * workers}, "steps": _STEPS, **more}
    return scenario_of(kind, seed, strategy, _layers(6), 400, random.uniform(0.15, 0.25), _MEMORY_GBPS, **fields)


def _stages(kind: str, seed: int, random: Random, balance: Sequence[int] = (2,) * _STAGES) -> Scenario:
    """A pipeline of stages that take turns, so that one message is sent at a time. balance: layers of each."""
    strategy = {"kind": "pipeline", "stages": _STAGES, "microbatches": 1, "schedule": "gpipe", "balance": list(balance)}
    fields: dict[str, Any] = {"batch": {"total": 32}, "steps": _STEPS}
    rates = random.choice((30, 40)), random.uniform(1.5, 2.5), _MEMORY_GBPS
    return scenario_of(kind, seed, strategy, _layers(sum(balance)), *rates, **fields)


def _slow_by(ranks: Sequence[int], slowdown: float, after_s: float | None = None) -> Perturbations:
    slow = {"ranks": list(ranks), "slowdown": slowdown}
    return Perturbations.model_validate(
        {"stragglers": [slow]} if after_s is None else {"throttled": [slow | {"after": f"{after_s} s"}]}
    )


def _one(scenario: Scenario, cause: Cause, rank: int, kind: str, seed: int, **fault: Any) -> JobFault:
    return JobFault(PlantedFault(kind, seed, scenario, "", **fault), [(cause, frozenset([rank]))])


def _slow_device(kind: str, seed: int, random: Random) -> JobFault:
    scenario = _replicas(kind, seed, random)
    rank = random.randrange(scenario.strategy.ranks)
    return _one(scenario, "slow device", rank, kind, seed, unevenness=_slow_by([rank], random.uniform(1.25, 1.6)))


def _throttling(kind: str, seed: int, random: Random) -> JobFault:
    scenario = _replicas(kind, seed, random)
    rank, since = random.randrange(scenario.strategy.ranks), _STEPS // 2
    after_s = since * predict(scenario, interval=False).step_time_s
    slow = _slow_by([rank], random.uniform(1.25, 1.6), after_s)
    return replace(_one(scenario, "throttling", rank, kind, seed, unevenness=slow), since=since + 3)


def _of_a_link(kind: str, seed: int, random: Random, first: int, last: int, **fault: Any) -> JobFault:
    """A fault of the link of one of some stages."""
    scenario, host = _stages(kind, seed, random), random.randint(first, last)
    return _one(scenario, "slow link", host, kind, seed, host=host, **fault)


def _slow_upload(kind: str, seed: int, random: Random) -> JobFault:
    return _of_a_link(kind, seed, random, 0, _STAGES - 1, upload=random.uniform(0.3, 0.6))


def _stalling_link(kind: str, seed: int, random: Random) -> JobFault:
    return _of_a_link(kind, seed, random, 1, _STAGES - 2, upload=0.05, stalls=True)


def _slow_card(kind: str, seed: int, random: Random) -> JobFault:
    return _of_a_link(kind, seed, random, 0, _STAGES - 1, rate=random.uniform(0.3, 0.6))


def _traffic(kind: str, seed: int, random: Random) -> JobFault:
    return _of_a_link(kind, seed, random, 0, _STAGES - 1, traffic=random.uniform(0.5, 0.7))


def _late(kind: str, seed: int, random: Random, cause: Cause, late: Lateness) -> JobFault:
    scenario = _replicas(kind, seed, random)
    rank = random.randrange(scenario.strategy.ranks)
    return _one(scenario, cause, rank, kind, seed, late={rank: late})


def _slow_loader(kind: str, seed: int, random: Random) -> JobFault:
    return _late(kind, seed, random, "input", Lateness(random.uniform(0.02, 0.08)))


def _late_launches(kind: str, seed: int, random: Random) -> JobFault:
    return _late(kind, seed, random, "slow host", Lateness(random.uniform(0.02, 0.06), before=Phase.BACKWARD))


def _collection(kind: str, seed: int, random: Random) -> JobFault:
    return _late(kind, seed, random, "stalls", Lateness(random.uniform(0.15, 0.3), every=random.choice((5, 6))))


def _checkpoints(kind: str, seed: int, random: Random) -> JobFault:
    scenario = _replicas(kind, seed, random)
    late = Lateness(random.uniform(0.15, 0.3), every=random.choice((5, 6)))
    planted = PlantedFault(kind, seed, scenario, "", late=dict.fromkeys(range(scenario.strategy.ranks), late))
    return JobFault(planted, [("periodic stall", frozenset())])


def _uneven_samples(kind: str, seed: int, random: Random) -> JobFault:
    """One worker has more samples than the others."""
    rank, most, state = random.randrange(_WORKERS), random.choice((11, 12)), random.getstate()
    shares = [most if worker == rank else 8 for worker in range(_WORKERS)]
    scenario = _replicas(kind, seed, random, batch={"total": sum(shares)}, strategy={"shares": shares})
    uneven = _one(scenario, "imbalance", rank, kind, seed)
    random.setstate(state)
    return replace(uneven, healthy=PlantedFault(kind, seed, _replicas(kind, seed, random), ""))


def _uneven_stages(kind: str, seed: int, random: Random) -> JobFault:
    """One stage has more layers than the others."""
    stage, state = random.randrange(_STAGES), random.getstate()
    balance = [5 if one == stage else 3 for one in range(_STAGES)]
    uneven = _one(_stages(kind, seed, random, balance), "imbalance", stage, kind, seed)
    random.setstate(state)
    return replace(uneven, healthy=PlantedFault(kind, seed, _stages(kind, seed, random, (3,) * _STAGES), ""))


def _busy_core(kind: str, seed: int, random: Random) -> JobFault:
    stages, width = 3, 768
    strategy = {"kind": "pipeline", "stages": stages, "microbatches": 1, "schedule": "gpipe"}
    more: dict[str, Any] = {"compute": "real", "batch": {"total": 192}, "steps": 12}
    scenario = scenario_of(kind, seed, strategy, _layers(4 * stages, width), 1000, **more)
    busy = random.randrange(stages)
    return _one(scenario, "slow device", busy, kind, seed, busy=busy)


def _drift(kind: str, seed: int, random: Random) -> JobFault:
    """All ranks become slower little by little."""
    scenario = _replicas(kind, seed, random, steps=_MORE_STEPS)
    step_s, change = predict(scenario, interval=False).step_time_s, random.uniform(1.015, 1.02)
    grown = [{"slowdown": change, "after": f"{step * step_s} s"} for step in range(2, _MORE_STEPS)]
    planted = PlantedFault(kind, seed, scenario, "", unevenness=Perturbations.model_validate({"throttled": grown}))
    return JobFault(planted, [("drift", frozenset())])


def _jitter(kind: str, seed: int, random: Random) -> JobFault:
    """A rank makes no progress for a while in each of some periods."""
    scenario = _replicas(kind, seed, random)
    rank, step_s = random.randrange(scenario.strategy.ranks), predict(scenario, interval=False).step_time_s
    noise = {"ranks": rank, "lasts": f"{0.35 * step_s} s", "period": f"{random.uniform(1.9, 2.6) * step_s} s"}
    return _one(scenario, "jitter", rank, kind, seed, unevenness=Perturbations.model_validate({"noise": [noise]}))


def _two_ranks(kind: str, seed: int, random: Random) -> JobFault:
    """A slow device and a slow loader of another rank."""
    scenario = _replicas(kind, seed, random)
    slow, late = random.sample(range(scenario.strategy.ranks), 2)
    fault: dict[str, Any] = {
        "unevenness": _slow_by([slow], random.uniform(1.3, 1.6)),
        "late": {late: Lateness(random.uniform(0.02, 0.04))},
    }
    planted = PlantedFault(kind, seed, scenario, "", **fault)
    return JobFault(planted, [("slow device", frozenset([slow])), ("input", frozenset([late]))])


def _device_and_link(kind: str, seed: int, random: Random) -> JobFault:
    """A slow device and a slow link of another stage."""
    scenario = _stages(kind, seed, random)
    slow, host = random.sample(range(_STAGES), 2)
    fault: dict[str, Any] = {
        "unevenness": _slow_by([slow], random.uniform(1.5, 2.0)),
        "host": host,
        "upload": random.uniform(0.3, 0.5),
    }
    planted = PlantedFault(kind, seed, scenario, "", **fault)
    return JobFault(planted, [("slow device", frozenset([slow])), ("slow link", frozenset([host]))])


KINDS: Final[Mapping[str, Callable[[str, int, Random], JobFault]]] = {
    "slow device": _slow_device,
    "throttling from the middle": _throttling,
    "slow link one way": _slow_upload,
    "link that stalls": _stalling_link,
    "slow network card": _slow_card,
    "others' traffic": _traffic,
    "slow loader": _slow_loader,
    "late launches": _late_launches,
    "garbage collection of a rank": _collection,
    "checkpoints": _checkpoints,
    "uneven samples": _uneven_samples,
    "uneven stages": _uneven_stages,
    "busy core": _busy_core,
    "drift": _drift,
    "jitter of a rank": _jitter,
    "slow device, slow loader": _two_ranks,
    "slow device, slow link": _device_and_link,
}
