"""Strategies of a number of hosts, by family: every kind that can be measured, with fields of its own."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

from scaleproof.proof.proving.models import MOST_STAGES
from scaleproof.simulator.parallelism.stages import V_SHAPED

# Steps of servers that do not wait for all workers, whose queues differ from step to step.
_STEPS_OF_QUEUES: Final = 24
# Schedules of several stages per rank, which divide models into twice as many parts.
_LOOPED: Final = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", *sorted(V_SHAPED))


class StrategyFamily(NamedTuple):
    """A strategy of one group of cases. name: of strategies that differ in details. kind: of families that resemble one
    another, of which few are in a group. changes: fields of the scenario in which it differs from others of its group.
    within_passes: whether ranks exchange data within passes, which is predicted for equal links alone."""

    name: str
    kind: str
    changes: dict[str, Any]
    within_passes: bool = False


def microbatches_on(hosts: int) -> int:
    """Number of microbatches of a pipeline over a number of hosts."""
    return 4 if hosts < 4 else hosts


def families_on(random: Random, hosts: int, samples: int) -> list[StrategyFamily]:
    """Families of strategies on `hosts` hosts that train, with drawn fields. samples: of a step."""
    parts = (_summing, _compressed, _sharded, _served, _staged, _mixed)
    return [family for part in parts for family in part(random, hosts, samples)]


def _family(name: str, kind: str, strategy: dict[str, Any], **training: Any) -> StrategyFamily:
    return StrategyFamily(name, kind, {"strategy": strategy} | ({"training": training} if training else {}))


def _data_parallel(hosts: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "data_parallel", "workers": hosts, **fields}


def _summing(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    """Workers that sum whole gradients, or what they have learnt."""
    bucket = random.choice(("1 MiB", "2 MiB", "4 MiB"))
    yield _family("ring", "summing", _data_parallel(hosts, algorithm="ring", overlap=False))
    yield _family("ddp", "summing", _data_parallel(hosts, bucket=bucket, first_bucket=random.choice(("256 KiB", "1 MiB"))))
    yield _family("ddp after", "summing", _data_parallel(hosts, bucket=bucket, overlap=False))
    yield _family("accumulated", "summing", _data_parallel(hosts, bucket=bucket, microbatches=2))
    yield _family("uneven shares", "summing", _data_parallel(hosts, bucket=bucket, shares=_shares(hosts, samples)))
    yield _family("recomputed", "summing", _data_parallel(hosts, bucket=bucket), recompute="full")
    yield _family("gather", "summing", {"kind": "gather_average", "workers": hosts})
    local = {"kind": "local_sgd", "workers": hosts, "period": 2}
    yield _family("local sgd", "summing", local | {"outer": random.choice(("none", "nesterov"))})
    yield _family("local sgd overlapped", "summing", local | {"overlap": True})


def _shares(hosts: int, samples: int) -> list[int]:
    """Samples of each worker, of which the last has half as many more than others."""
    least = max(1, 2 * samples // (2 * hosts + 1))
    return [least] * (hosts - 1) + [samples - least * (hosts - 1)]


def _compressed(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    half = random.choice(("fp16", "bf16"))
    yield _family("half precision", "compressed", _data_parallel(hosts, compression={"kind": half}))
    yield _family("top k", "compressed", _data_parallel(hosts, compression={"kind": "top_k", "share": 0.05}))
    yield _family("power sgd", "compressed", _data_parallel(hosts, compression={"kind": "power_sgd", "rank": 4}))


def _sharded(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    """Workers that divide states, gradients and parameters (ZeRO)."""
    yield _family("zero 1", "sharded", _data_parallel(hosts, bucket="2 MiB"), zero=1)
    yield _family("zero 2", "sharded", _data_parallel(hosts, bucket="2 MiB"), zero=2)
    yield _family("zero 2 per step", "sharded", _data_parallel(hosts, microbatches=2, scatter="step"), zero=2)
    fields = random.choice(({}, {"reshard": False}, {"prefetch": 2}))
    yield _family("zero 3", "sharded", _data_parallel(hosts, **fields), zero=3)
    if hosts % 2 == 0 and hosts > 2:
        yield _family("zero 3 in groups", "sharded", _data_parallel(hosts, shard_over=hosts // 2), zero=3)


def _served(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    """Workers of parameter servers, which have hosts of their own."""
    common = {"kind": "parameter_server", "workers": hosts}
    shard = random.choice(("bytes", "bytes", "tensor", "round_robin"))
    yield _family("1 server", "served", common | {"servers": 1})
    yield _family("2 servers", "served", common | {"servers": 2, "shard": shard})
    yield _family("overlapped servers", "served", common | {"servers": 2, "overlap": True, "bucket": "2 MiB"})
    if hosts > 2:
        yield _family("backup worker", "served", common | {"servers": 2, "backups": 1})
    for name, fields in (
        ("asynchronous servers", {"mode": "asynchronous"}),
        ("stale servers", {"mode": "stale_synchronous", "bound": random.choice((1, 2))}),
        ("shared units", {"mode": "asynchronous", "assignment": "dynamic", "units": _STEPS_OF_QUEUES * hosts}),
    ):
        changes = {"strategy": common | {"servers": random.choice((1, 2))} | fields, "steps": _STEPS_OF_QUEUES}
        yield StrategyFamily(name, "served", changes)


def _staged(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    """Pipelines over all hosts, and stages that take turns."""
    if hosts > MOST_STAGES:
        return
    plain = {"kind": "pipeline", "stages": hosts, "microbatches": microbatches_on(hosts)}
    yield _family("gpipe", "staged", plain | {"schedule": "gpipe"})
    yield _family("gpipe recomputed", "staged", plain | {"schedule": "gpipe"}, recompute="full")
    yield _family("1f1b", "staged", plain | {"schedule": "1f1b", "overlap_sends": random.random() < 0.5})
    yield _family("stages in turn", "staged", {"kind": "model_parallel", "stages": hosts})
    for schedule in ("zb_h1", "zb_h2", *_LOOPED):
        chunks = {"chunks": 2} if schedule in _LOOPED else {}
        ahead: dict[str, Any] = {"overlap_sends": schedule != "looped_bfs"}
        if schedule == "dualpipe_v":
            ahead["microbatches"] = max(4, 2 * hosts)
        yield _family(schedule.replace("_", " "), "staged", plain | chunks | ahead | {"schedule": schedule})


def _mixed(random: Random, hosts: int, samples: int) -> Iterator[StrategyFamily]:
    """Several dimensions at once: workers of stages, or ranks that divide layers, tokens or experts."""
    halves: dict[str, Any] = {"kind": "hybrid", "workers": hosts // 2, "stages": 1}
    if hosts % 2:
        return
    staged = halves | {"stages": 2, "microbatches": 4}
    if hosts >= 4:
        yield _family("hybrid", "mixed", staged | {"schedule": random.choice(("gpipe", "1f1b"))})
        yield _family("hybrid zero 1", "mixed", staged, zero=1)
        yield _family("hybrid recomputed", "mixed", staged, recompute="full")
    divided: dict[str, dict[str, Any]] = {
        "tensor": {"tensor": 2},
        "sequence parallel": {"tensor": 2, "sequence_parallel": True},
        "experts": {"workers": hosts, "expert": 2},
        **{f"context {way.replace('_', ' ')}": {"context": 2, "context_by": way} for way in ("ring", "all_gather", "ulysses")},
    }
    for name, fields in divided.items():
        yield StrategyFamily(name, "mixed", {"strategy": halves | fields}, within_passes=True)
