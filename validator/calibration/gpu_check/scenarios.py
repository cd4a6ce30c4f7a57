"""Scenarios of the GPU check: models on one device, then every way of training on several ranks, by the number of devices."""

from __future__ import annotations

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
# Numbers of ranks for which there are families, in addition to the number of devices.
RANKS: Final = (2, 4)
MOST_SHARED: Final = RANKS[-1]
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
        """Data of a scenario with the strategy, and further fields of training, in `fields`."""
        return {
            "model": dict(self.model),
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
    """single: trained on one device. replicated: trained on ranks that have a device each. shared: trained on ranks that share
    one, in fp64 so that results agree to rounding."""

    single: tuple[Training, ...]
    replicated: Training
    shared: Training
    steps: int


FULL: Final = Trainings(
    single=(
        Training("gpt-124m-bf16-8", GPT_124M, 8, "bf16"),
        Training("gpt-124m-bf16-32", GPT_124M, 32, "bf16", "adam"),
        Training("gpt-124m-fp32-8", GPT_124M, 8, "fp32", "adam"),
        Training("gpt-774m-bf16-8", GPT_774M, 8, "bf16"),
        Training("resnet50-bf16-64", _RESNET50, 64, "bf16", "momentum"),
        Training("resnet50-bf16-128", _RESNET50, 128, "bf16", "momentum"),
        Training("resnet50-fp32-64", _RESNET50, 64, "fp32", "momentum"),
        Training("resnet152-bf16-32", {"kind": "resnet", "depth": 152}, 32, "bf16", "momentum"),
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


def separate(trainings: Trainings, devices: int, cluster: str | Fields) -> dict[str, Fields]:
    """Scenarios of ranks that have one of the cluster's devices each, by name."""
    named = {training.name: training.scenario(cluster, ALONE, trainings.steps) for training in trainings.single}
    if devices > 1:
        replicated = trainings.replicated
        own = families(ranks for ranks in sorted({*RANKS, devices}) if ranks <= devices)
        for name, fields in {"alone": ALONE, **own}.items():
            named[f"{replicated.name}-{name}"] = replicated.scenario(cluster, fields, trainings.steps)
    return named


def shared(trainings: Trainings, devices: int, label: str) -> dict[str, Fields]:
    """Scenarios of ranks that share devices because there are fewer of these, by name. label: of a dry run."""
    note = f"{SHARED}; dry run" if label else SHARED
    cluster = _UNKNOWN | {"name": label or SHARED}
    few = families(ranks for ranks in RANKS if ranks > devices)
    return {f"{name} ({note})": trainings.shared.scenario(cluster, fields, trainings.steps) for name, fields in few.items()}


def write(named: Mapping[str, Fields], folder: Path) -> list[tuple[Path, Scenario]]:
    """Writes the scenarios as files of a folder and reads them again."""
    paths = [folder / f"{name}.yaml" for name in named]
    for path, data in zip(paths, named.values(), strict=True):
        write_atomically(path, written(data).encode())
    return [(path, load(str(path))) for path in paths]


def families(numbers: Iterable[int]) -> dict[str, Fields]:
    """Fields of each family by name, over each of the given numbers of ranks; over 4 ranks there is every family."""
    named = {f"{name}-{ranks}": fields for ranks in numbers for name, fields in _over(ranks).items()}
    return {name: fields for name, fields in named.items() if SAMPLES % fields["strategy"].get("workers", 1) == 0}


def _over(ranks: int) -> dict[str, Fields]:
    """Fields of the families over `ranks` ranks, by name without that number."""
    workers = {"kind": "data_parallel", "workers": ranks}
    served = {"kind": "parameter_server", "workers": ranks - 1, "servers": 1}
    strategies: Fields = {"ddp": workers, "fsdp": workers, "servers": served}
    if ranks == MOST_SHARED:
        strategies |= {
            "ring": {**workers, "algorithm": "ring"},
            "fp16": {**workers, "compression": {"kind": "fp16"}},
            "local-sgd": {"kind": "local_sgd", "workers": ranks, "period": 2},
            "asynchronous": {**served, "mode": "asynchronous"},
            "zero-2": workers,
        }
    if ranks <= MOST_SHARED:
        schedule = "gpipe" if ranks == 2 else "1f1b"
        strategies["pipeline"] = {"kind": "pipeline", "stages": ranks, "microbatches": 6, "schedule": schedule}
    if ranks % 2 == 0:
        pairs = {"kind": "hybrid", "workers": ranks // 2}
        strategies["tensor"] = {**pairs, "stages": 1, "tensor": 2, "sequence_parallel": True}
        if ranks > 2:
            strategies["hybrid"] = {**pairs, "stages": 2, "microbatches": 2}
            strategies["hybrid-zero-1"] = strategies["hybrid-fsdp"] = strategies["hybrid"]
            strategies["overlap-tensor"] = {**strategies["tensor"], "overlap_tensor": True}
    fields = {name: {"strategy": strategy} for name, strategy in strategies.items()}
    for name, stage in (("fsdp", 3), ("hybrid-fsdp", 3), ("zero-2", 2), ("hybrid-zero-1", 1)):
        if name in fields:
            fields[name]["training"] = {"zero": stage}
    return fields
