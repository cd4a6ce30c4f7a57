"""A published training run of a vision model as a scenario: only what a user could have written, and what had to be assumed."""

from __future__ import annotations

import functools
import re
from typing import Any, Final, get_args

import yaml

from scaleproof.simulator.cluster.device.device import Optimizer
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.published.clusters import cluster_of, device_named
from scaleproof.simulator.published.tables import Row, folder
from scaleproof.simulator.published.training_runs import RowScenario, software_of
from scaleproof.simulator.scenario.load import load

# What a blank is taken for, by column.
_ASSUMED: Final = {"gpu": "V100-32GB", "gpus": "1", "nodes": "1", "optimizer": "sgd", "grad_accum": "1"}
_TIMM: Final = "timm "
# Words for the precision, in order; TF32 where GPUs have it is what PyTorch and containers call FP32.
_PRECISIONS: Final = (
    ("bf16|bfloat", "bf16"),
    ("fp16|amp|mixed|half", "fp16"),
    ("tf32", "tf32"),
    ("fp32|float32|single", "fp32"),
)
# PyTorch before version 2 has no attention in one kernel.
_BEFORE_FLASH: Final = re.compile(r"PyTorch (0|1)\.|PyTorch (1\d|2[0-2])\.\d\d|20(1\d|2[0-2])|TensorFlow")


@functools.cache
def _known_models() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((folder() / "vision_models.yaml").read_text(encoding="utf-8"))
    return found


def vision_run(row: Row, named: bool = True) -> RowScenario:
    """The scenario of a row of vision.csv.

    named: whether the scenario names the row's framework; else it leaves that to the default. Raises InputError where the row
    lacks what a scenario needs or says what is not modelled, and ScaleproofError where the scenario is not valid.
    """
    assumed = [column for column, usual in _ASSUMED.items() if not row[column] and column != "grad_accum"]
    row = {**row, **{column: row[column] or usual for column, usual in _ASSUMED.items()}}
    software = software_of(row) or {}
    if not software:
        assumed.append("software")
    if not row["batch_per_gpu"]:
        raise InputError("the batch is not stated")
    precision = _precision(row)
    if precision is None:
        precision = "fp32"
        assumed.append("precision")
    gpus = int(row["gpus"])
    batch = round(float(row["batch_per_gpu"]))
    accumulated = round(float(row["grad_accum"]))
    cluster, unknown = _cluster(row)
    strategy = {"kind": "data_parallel", "workers": gpus, "microbatches": accumulated, **software.get("strategy", {})}
    parts: dict[str, Any] = {
        "name": row["id"],
        "model": _model(row),
        "cluster": cluster,
        "strategy": strategy,
        "batch": {"total": batch * accumulated * gpus},
        "training": {"precision": precision, "optimizer": _optimizer(row)},
    }
    if named and software:
        parts["framework"] = software["framework"]
    if "input" in software:
        # workers are those of a GPU, or the cores of the node if these are fewer
        given = dict(software["input"])
        cores = min(given.pop("workers") * gpus // int(row["nodes"]), given.pop("most"))
        parts["input"] = given | {"cores": cores}
    return RowScenario(load(parts), (*assumed, *unknown))


def _precision(row: Row) -> str | None:
    """The precision that a row states in its own column or with the software; None if it states none."""
    words = row["precision"].lower() or row["software"].lower()
    found = next((name for pattern, name in _PRECISIONS if re.search(pattern, words)), None)
    is_wide = found == "fp32" and re.search(r"A100|A40|A10|L4|H100|H200|B200|RTX (A|[345]0)", row["gpu"])
    # cuDNN's convolutions use TF32 unless scripts say otherwise
    return "tf32" if is_wide else found


def _optimizer(row: Row) -> str:
    words = row["optimizer"].lower()
    words = re.sub(r"rmsprop|lars|nesterov|sgd", "momentum", words)
    words = re.sub(r"adamw|lamb", "adam", words)
    found = next((name for name in get_args(Optimizer) if re.search(rf"\b{name}\b", words)), None)
    if found is None:
        raise InputError(f"optimizer {row['optimizer']} is not modelled")
    return str(found)


def _model(row: Row) -> dict[str, Any]:
    """The model by its name in timm, or by words of `vision_models.yaml`."""
    name, found, flash = row["model"], dict[str, Any](), not _BEFORE_FLASH.search(row["software"])
    side = re.match(r"(\d+)$|(\d+) ?x ?\2(?!\d)", row["image_size"])
    if name.startswith(_TIMM):
        found = {"source": f"timm:{name.removeprefix(_TIMM).partition('.')[0]}"}
    else:
        known = next((one for one in _known_models() if re.search(one["model"], name, re.IGNORECASE)), None)
        if known is None:
            raise InputError(f"no model is known for {name}")
        found = {"source": known["source"]}
        flash = flash and known.get("flash", True)
        if not known.get("sized", False):
            side = None
    if side:
        found["image"] = int(side[1] or side[2])
    return {"kind": "recorded", "name": name, "flash": flash, **found}


def _cluster(row: Row) -> tuple[Any, tuple[str, ...]]:
    """One device, or nodes that are usual for it; and columns that had to be assumed."""
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    if gpus == 1:
        return {"name": row["gpu"], "nodes": 1, "node": {"devices": 1}, "device": device_named(row["gpu"])}, ()
    more = {"cluster": "", "gpus_per_node": str(gpus // nodes)}
    cluster, unknown = cluster_of({**row, **more})
    update = {"nodes": nodes, "node": cluster.node.model_copy(update={"used": gpus // nodes})}
    return cluster.model_copy(update=update), tuple(one for one in unknown if nodes > 1 or one != "network")
