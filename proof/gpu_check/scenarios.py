"""Scenarios of the GPU check: models on one device, and every way of training on several ranks, by the number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.scenario.dump import written
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.gpu_sizes import GPT_124M, GPT_774M, GPT_TINY, RESNET_TINY

Fields = dict[str, Any]

# Samples of a step over all ranks: divisible by 1, 2, 3, 4, 6 and 8 workers.
SAMPLES: Final = 24
# Numbers of ranks that train if there are that many devices, or share devices otherwise.
RANKS: Final = (4, 2)
MOST_SHARED: Final = max(RANKS)
# Families that are trained over each number of ranks; the others once.
REPEATED: Final = ("ddp", "fsdp", "servers", "pipeline", "tensor", "hybrid")
_EXPERTS: Final = 8
# GPT-124M has a layer for each of this many stages.
_MOST_STAGES: Final = 12
ALONE: Final[Fields] = {"strategy": {"kind": "data_parallel", "workers": 1}}
SHARED: Final = "functional check, not accuracy"
# Cluster of ranks that share devices. Nothing is predicted for it; only its number of devices matters.
_UNKNOWN: Final[Fields] = {
    "node": {"devices": MOST_SHARED, "link": {"bandwidth": "1 GB/s", "latency": "50 us"}},
    "device": {"name": "shared", "peak": {"fp64": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "1 GB/s"},
}
# Small, because one CPU core trains it again for comparison.
_GPT_SHARED: Final = {"kind": "gpt", "layers": 4, "hidden": 128, "heads": 4, "vocabulary": 256, "sequence": 64}
_RESNET50: Final = {"kind": "resnet"}


@dataclass(frozen=True)
class Training:
    """A model and how it is trained. batch: samples per step."""

    name: str
    model: Mapping[str, Any]
    batch: int
    precision: str
    optimizer: str = "sgd"

    def scenario(self, cluster: str | Fields, fields: Fields, steps: int) -> Fields:
        """Data of a scenario with the strategy, and further fields of training and of the model, in `fields`."""
        return {
            "model": {**self.model, **fields.get("model", {})},
            "cluster": cluster,
            "strategy": fields["strategy"],
            "batch": {"total": self.batch},
            # ranks train in 16 bits throughout
            "training": {
                "precision": self.precision, "autocast": False, "optimizer": self.optimizer, **fields.get("training", {}),
            },
            "steps": steps,
        }  # fmt: skip


@dataclass(frozen=True)
class Trainings:
    """single: trained on one device, the first `FIRST` of them before all else. replicated: trained on ranks that have a device
    each. shared: trained on ranks that share one, in fp64 so that results agree to rounding."""

    single: tuple[Training, ...]
    replicated: Training
    shared: Training
    steps: int


FIRST: Final = 2
FULL: Final = Trainings(
    single=(
        Training("gpt-124m-bf16-8", GPT_124M, 8, "bf16"),
        Training("resnet50-bf16-64", _RESNET50, 64, "bf16", "momentum"),
        Training("gpt-774m-bf16-8", GPT_774M, 8, "bf16"),
        Training("resnet50-fp32-64", _RESNET50, 64, "fp32", "momentum"),
        Training("gpt-124m-fp32-8", GPT_124M, 8, "fp32", "adam"),
        Training("resnet152-bf16-32", {"kind": "resnet", "depth": 152}, 32, "bf16", "momentum"),
        Training("gpt-124m-bf16-32", GPT_124M, 32, "bf16", "adam"),
        Training("resnet50-bf16-128", _RESNET50, 128, "bf16", "momentum"),
    ),
    replicated=Training("gpt-124m", GPT_124M, SAMPLES, "bf16"),
    shared=Training("gpt-mini", _GPT_SHARED, SAMPLES, "fp64"),
    steps=10,
)
DRY: Final = Trainings(
    single=(Training("gpt-tiny-fp32", GPT_TINY, 8, "fp32", "adam"), Training("resnet50-tiny-fp32", RESNET_TINY, 2, "fp32")),
    replicated=Training("gpt-tiny", GPT_TINY, SAMPLES, "fp32"),
    shared=Training("gpt-tiny", GPT_TINY, SAMPLES, "fp64"),
    steps=3,
)


def first_models(trainings: Trainings, cluster: str | Fields) -> dict[str, Fields]:
    """Scenarios of the first models on one device, by name."""
    return {training.name: training.scenario(cluster, ALONE, trainings.steps) for training in trainings.single[:FIRST]}


def every_family(trainings: Trainings, devices: int, cluster: str | Fields) -> dict[str, Fields]:
    """Scenarios of each family over as many of the cluster's devices as it can use, by name."""
    return _replicated(trainings, families(_numbers(devices)), cluster)


def remaining(trainings: Trainings, devices: int, cluster: str | Fields) -> dict[str, Fields]:
    """Scenarios of one rank with the model of the families, of families over fewer ranks, and of the other models, by name."""
    repeats = repeated_families(_numbers(devices))
    fewer = _replicated(trainings, {"alone": ALONE, **repeats}, cluster) if devices > 1 else {}
    return fewer | {training.name: training.scenario(cluster, ALONE, trainings.steps) for training in trainings.single[FIRST:]}


def shared(trainings: Trainings, devices: int, label: str) -> dict[str, Fields]:
    """Scenarios of ranks that share devices because there are fewer of these, by name. label: of a dry run."""
    note = f"{SHARED}; dry run" if label else SHARED
    cluster = _UNKNOWN | {"name": label or SHARED}
    numbers = [ranks for ranks in RANKS if ranks > devices]
    few = families(numbers) | repeated_families(numbers)
    return {f"{name} ({note})": trainings.shared.scenario(cluster, fields, trainings.steps) for name, fields in few.items()}


def write(named: Mapping[str, Fields], folder: Path) -> list[tuple[Path, Scenario]]:
    """Writes the scenarios as files of a folder and reads them again."""
    paths = [folder / f"{name}.yaml" for name in named]
    for path, data in zip(paths, named.values(), strict=True):
        write_atomically(path, written(data).encode())
    return [(path, load(str(path))) for path in paths]


def families(numbers: Iterable[int]) -> dict[str, Fields]:
    """Fields of each family by name, over the first of the given numbers of ranks over which it trains."""
    return {f"{family}-{ranks}": fields for family, ranks, fields in _distinct(numbers)[0]}


def repeated_families(numbers: Iterable[int]) -> dict[str, Fields]:
    """Fields of `REPEATED` families by name, over each of the numbers of ranks but those of `families`."""
    return {f"{family}-{ranks}": fields for family, ranks, fields in _distinct(numbers)[1]}


def _numbers(devices: int) -> list[int]:
    """Numbers of ranks on the devices of a machine: as many as can share the samples of a step, and fewer."""
    most = max(ranks for ranks in range(1, devices + 1) if SAMPLES % ranks == 0)
    return [ranks for ranks in dict.fromkeys([most, *RANKS]) if 1 < ranks <= most]


def _replicated(trainings: Trainings, named: Mapping[str, Fields], cluster: str | Fields) -> dict[str, Fields]:
    replicated, steps = trainings.replicated, trainings.steps
    return {f"{replicated.name}-{name}": replicated.scenario(cluster, fields, steps) for name, fields in named.items()}


_Named = tuple[str, int, Fields]


def _distinct(numbers: Iterable[int]) -> tuple[list[_Named], list[_Named]]:
    """Families with their number of ranks and fields: the first of each, and repeats."""
    firsts: dict[str, _Named] = {}
    repeats: list[_Named] = []
    for ranks in numbers:
        for family, fields in _over(ranks).items():
            one = family, ranks, fields
            if firsts.setdefault(family, one) is not one and family in REPEATED:
                repeats.append(one)
    return list(firsts.values()), repeats


def _over(ranks: int) -> dict[str, Fields]:
    """Fields of the families over `ranks` ranks, a divisor of `SAMPLES`, by name without that number."""
    workers = {"kind": "data_parallel", "workers": ranks}
    pulling = max(number for number in range(1, ranks) if SAMPLES % number == 0)
    served = {"kind": "parameter_server", "workers": pulling, "servers": ranks - pulling}
    strategies: Fields = {"ddp": workers, "fsdp": workers, "servers": served}
    if ranks <= _MOST_STAGES:
        # not every framework has the one value that torch's gpipe allows as its default
        schedule = {"schedule": "gpipe", "overlap_sends": False} if ranks == 2 else {"schedule": "1f1b"}
        strategies["pipeline"] = {"kind": "pipeline", "stages": ranks, "microbatches": max(6, ranks), **schedule}
    if ranks % 2 == 0:
        pairs = {"kind": "hybrid", "workers": ranks // 2}
        strategies["tensor"] = {**pairs, "stages": 1, "tensor": 2, "sequence_parallel": True}
        strategies["experts"] = {"kind": "hybrid", "workers": ranks, "expert": math.gcd(ranks, _EXPERTS)}
        strategies["ring-attention"] = {**pairs, "stages": 1, "context": 2}
        strategies["ulysses"] = {**strategies["ring-attention"], "context_by": "ulysses"}
        chunks = {"schedule": "interleaved_1f1b", "chunks": 2, "overlap_sends": True}
        strategies["interleaved"] = {**pairs, "stages": 2, "microbatches": math.gcd(SAMPLES * 2 // ranks, 4), **chunks}
        if ranks > 2:
            strategies["hybrid"] = {**pairs, "stages": 2, "microbatches": 2}
            strategies["hybrid-zero-1"] = strategies["hybrid-fsdp"] = strategies["hybrid"]
        strategies["overlap-tensor"] = {**strategies["tensor"], "overlap_tensor": True}
    strategies |= {
        "zero-2": workers,
        "ring": {**workers, "algorithm": "ring"},
        "fp16": {**workers, "compression": {"kind": "fp16"}},
        "local-sgd": {"kind": "local_sgd", "workers": ranks, "period": 2},
        "asynchronous": {**served, "mode": "asynchronous"},
    }
    fields = {name: {"strategy": strategy} for name, strategy in strategies.items()}
    for name, stage in (("fsdp", 3), ("hybrid-fsdp", 3), ("zero-2", 2), ("hybrid-zero-1", 1)):
        if name in fields:
            fields[name]["training"] = {"zero": stage}
    if "experts" in fields:
        fields["experts"]["model"] = {"experts": {"count": _EXPERTS, "active": 2, "feedforward": 512}}
    return fields
