"""Published scaling of data-parallel training, predicted from each series' run on the fewest GPUs.

Rows that differ in the number of GPUs alone are a series. Its base, the run on the fewest, tells for how long one device works
on a step: so long that the prediction of the base itself, communication included, is what was measured. It is not scored.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Final, get_args

import numpy as np
from pydantic import ValidationError

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Optimizer, Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import MAIN_LANE, Kind, Program
from scaleproof.simulator.scenario.published.transformer import software_of
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.simulator.uncertainty.prediction_interval import spread
from scaleproof.validator.published.score import COARSE, Prediction

Row = Mapping[str, str]

CALIBRATION: Final[tuple[str, ...]] = ()
_SERIES: Final = ("source_set", "model", "cluster", "gpu", "batch_per_gpu", "seq_len", "precision", "software")
_SHAPE: Final = ("gpus", "nodes", "method", "servers", "grad_accum", "optimizer")
_PAIRS: Final = ("model", "gpus", "seq_len")
# Systems that no shipped file is called after, by name and words of the GPU's.
_SYSTEMS: Final = {
    ("dgx-1", "V100-16GB"): "dgx1-v100-16gb", ("dgx-1", "V100-32GB"): "dgx1-v100", ("dgx-1", "P100"): "dgx1",
    ("dgx-a100", "A100-40GB"): "dgx-a100-40gb", ("dgx-a100-cluster", "A100-80GB"): "dgx-a100",
    ("dgx-a100-cluster", "A100-40GB"): "dgx-a100-40gb", ("aws-p2-8xlarge", "K80"): "ec2d",
}  # fmt: skip
_PRECISIONS: Final[dict[str, Precision]] = {"mixed fp16": "fp16", "mixed": "fp16", "amp": "fp16", "mixed bf16": "bf16"}
_LARGEST_BATCH: Final = 1024
# How near the base's prediction comes to what was measured, and in how many steps.
_CLOSE: Final = 1e-7
_MOST_TRIES: Final = 50
# Of Horovod's fusion buffer (its documentation on tensor fusion).
_FUSED: Final = "64 MiB"
# TensorFlow sends each variable by itself; small ones go with their neighbours here, so that there are fewer messages.
_SENT_APART: Final[dict[str, Any]] = {"overlap": True, "bucket": "4 MiB"}


def predict(row: Row) -> Prediction:
    """The samples per second of a row whose base is in the shipped table."""
    return predict_among(row, ())


def predict_among(row: Row, rows: Sequence[Row]) -> Prediction:
    """The samples per second of a row of a table; its base is there or in the shipped one.

    What cannot be predicted is skipped with its reason.
    """
    source = row.get("source_set") or "not named"
    try:
        gpus, measured = _number(row, "gpus"), _rate(row)
        base, base_per_s = _base(row, (*rows, *_shipped_rows()))
        if gpus == _number(base, "gpus"):
            return Prediction(source, skipped="the base that the rest is predicted from")
        device_s = _device_s(_hashable(base), base_per_s)
        scenario = _scenario(row, device_s)
        predicted = scenario.total_samples / _step_s(scenario)
        interval = _interval(scenario, predicted)
    except ScaleproofError as error:
        return Prediction(source, skipped=str(error).partition(";")[0])
    except ValidationError as error:
        return Prediction(source, skipped=f"no scenario: {error.errors()[0]['msg']}")
    inputs, pairs = (tuple(row.get(column, "") for column in columns) for columns in ((*_SERIES, *_SHAPE), _PAIRS))
    return Prediction(
        source, predicted, measured, assumed=_assumed(row), inputs=inputs, pairs=pairs, interval=interval,
        nodes=scenario.cluster.nodes, framework=scenario.framework.name,
    )  # fmt: skip


def _base(row: Row, rows: Sequence[Row]) -> tuple[Row, float]:
    """The row of the series on the fewest GPUs, and its samples per second: their mean, of several. Raises InputError."""
    series = [other for other in rows if all(other.get(column, "") == row.get(column, "") for column in _SERIES)]
    known = [(int(other["gpus"]), other) for other in series if re.fullmatch("[1-9][0-9]{0,6}", other.get("gpus", ""))]
    fewest = min((gpus for gpus, _ in known), default=0)
    bases = [other for gpus, other in known if gpus == fewest]
    if not bases:
        raise InputError("no run on fewer GPUs to predict it from")
    return bases[0], fmean(_rate(base) for base in bases)


@cache
def _device_s(base_row: tuple[tuple[str, str], ...], samples_per_s: float) -> float:
    """Seconds for which one device works on its batch, such that the base takes as long as it did. Raises InputError."""
    base = dict(base_row)
    passes = _passes(base)
    measured_s = _number(base, "gpus") * _batch(base) * passes / samples_per_s
    device_s = measured_s / passes
    for _ in range(_MOST_TRIES):
        over_s = _step_s(_scenario(base, device_s)) - measured_s
        device_s -= over_s / passes
        if device_s <= 0:
            break
        if abs(over_s) < _CLOSE * measured_s:
            return device_s
    raise InputError("what the base communicates is predicted to take longer than its step")


def _step_s(scenario: Scenario) -> float:
    """Seconds of a step of all workers."""
    if _is_asynchronous(scenario):
        return _busiest_s(scenario.strategy.compile(scenario.job()))
    return timed(scenario).step_time_s


def _interval(scenario: Scenario, per_s: float) -> tuple[float, float] | None:
    """Where so many samples per second are with a probability of 90 %; not told where workers do not wait for one another."""
    if _is_asynchronous(scenario):
        return None
    told = spread(scenario, least=COARSE)
    return per_s / told.high, per_s / told.low


def _is_asynchronous(scenario: Scenario) -> bool:
    return isinstance(scenario.strategy, ParameterServer) and scenario.strategy.mode == "asynchronous"


def _busiest_s(program: Program) -> float:
    """Seconds for which the busiest worker, server or link works for a step.

    Workers that do not wait for one another come near to it once there are many of them, with whatever keeps it busy (the
    asymptotic bound of closed queueing networks, Denning & Buzen 1978). To simulate all their messages takes very long.
    """
    routes, moves = program.routes, program.kind == Kind.TRANSFER
    on_route = np.bincount(program.route[moves], program.amount[moves], len(routes.resources))
    used = on_route[routes.resources.keys()] * routes.per_unit / program.resources.capacity[routes.resources.values]
    serves, computes = program.kind == Kind.SERVE, program.lane == MAIN_LANE
    work_s = np.where(serves, program.requests * program.amount + program.update_s, program.amount * computes)
    busy_s = np.bincount(program.rank, work_s), np.bincount(routes.resources.values, used, minlength=1)
    return float(max(seconds.max() for seconds in busy_s))


def _scenario(row: Row, device_s: float) -> Scenario:
    """The row's training, where one device works on a batch for `device_s`. Raises ScaleproofError or pydantic's error."""
    gpus, batch = _number(row, "gpus"), _batch(row)
    cluster = _cluster(row)
    strategy = _strategy(row, cluster)
    measured = {"samples": batch, "time": f"{device_s} s"}
    return Scenario.model_validate({
        **_framework(row),
        "model": _model(row.get("model", ""), row.get("seq_len", "")),
        "cluster": _as_used(cluster, row, strategy),
        "strategy": strategy,
        "batch": {"total": gpus * batch * _passes(row)},
        "training": {"precision": _precision(row), "optimizer": _optimizer(row)[0], "measured_step": measured},
    })  # fmt: skip


def _framework(row: Row) -> dict[str, Any]:
    """The part of a scenario that names the row's framework; nothing where its software is not known, so that the default is
    taken."""
    known = software_of(row)
    return {} if known is None else {"framework": shipped(known["framework"])}


def _strategy(row: Row, cluster: Cluster) -> dict[str, Any]:
    """The strategy that the row's method is. Raises InputError."""
    method, gpus = row.get("method", "").lower(), _number(row, "gpus")
    if "parameter_server" in method or "distributed_replicated" in method or "no nccl" in method:
        return _servers(method, row, cluster)
    if not any(word in method for word in ("nccl", "allreduce", "horovod", "ddp")):
        raise InputError(f"unknown method: {method or 'none stated'}")
    strategy: dict[str, Any] = {"kind": "data_parallel", "workers": gpus, "microbatches": _passes(row)}
    if "gradient accumulation" in method:
        # NVIDIA/DeepLearningExamples: gradients are summed after the last pass; the PyTorch script makes them one bucket
        return strategy | {"overlap": False}
    if "replicated" in method:
        # each variable's by itself; TensorFlow's contrib/nccl lets NCCL wait for all that the host has issued to a device,
        # which is the whole backward pass
        return strategy | {"bucket": "1 B", "first_bucket": "1 B", "overlap": False}
    decides = "ddp" in method or "mirrored" in method
    return strategy if decides else strategy | {"bucket": _FUSED, "first_bucket": _FUSED}


def _servers(method: str, row: Row, cluster: Cluster) -> dict[str, Any]:
    """tf_cnn_benchmarks' ways of keeping variables at parameter servers, or sharing them out to GPUs as if they were.

    Gradients are sent as they are made, and variables as they are needed. Servers, or GPUs, get whole tensors, by their size.
    A worker of several GPUs sums their gradients first where variables are replicated, and waits for all workers' sums; with
    parameter_server on several machines each worker's gradients are applied as they come (that workers then wait for the end of
    each step, the script's default, is left out). Every GPU reaches its host's memory over a link of its own, as if an equal
    part of the variables lay at the end of each.
    """
    gpus = _number(row, "gpus")
    servers: dict[str, Any] = {"kind": "parameter_server", "workers": gpus, "placement": "colocated"}
    if _is_local(row):
        return servers | _SENT_APART | {"servers": gpus, "shard": "bytes" if " cpu" in method else "tensor"}
    machines = -(-gpus // cluster.node.devices)
    servers |= {"servers": _count(row.get("servers")) or machines, "shard": "tensor", "two_level": cluster.node.devices > 1}
    return servers | (_SENT_APART if "distributed_replicated" in method else {"mode": "asynchronous"})


def _is_local(row: Row) -> bool:
    """Whether variables stay in a process on the one machine that there is, and no servers are started."""
    is_distributed = "distributed" in row.get("method", "").lower() or bool(row.get("servers"))
    return not is_distributed and _count(row.get("nodes")) <= 1


def _as_used(cluster: Cluster, row: Row, strategy: Mapping[str, Any]) -> Cluster:
    """As many nodes as the GPUs need. Where these hold variables their own memory works, or a part of the host's for each."""
    node, gpus = cluster.node, _number(row, "gpus")
    if strategy["kind"] == "parameter_server" and _is_local(row):
        host_Bps = node.memory_bandwidth_Bps
        shared_Bps = host_Bps / gpus if host_Bps and strategy["shard"] == "bytes" else None
        node = node.model_copy(update={"memory_bandwidth_Bps": shared_Bps})
    return cluster.model_copy(update={"node": node, "nodes": -(-gpus // node.devices)})


def _cluster(row: Row) -> Cluster:
    """The shipped cluster of the row's name, else one with such GPUs and as many of them in a node. Raises InputError."""
    name, gpu = row.get("cluster", ""), row.get("gpu", "")
    cluster = _named_cluster(name, gpu) or _alike_cluster(gpu, _count(row.get("gpus_per_node")))
    if cluster is None:
        raise InputError(f"no cluster like {name or 'one without a name'} with {gpu or 'unknown GPUs'}")
    if _number(row, "gpus") > cluster.node.devices and cluster.network is None:
        raise InputError(f"no network between nodes of {name}")
    return cluster


@cache
def _named_cluster(name: str, gpu: str) -> Cluster | None:
    """The file called after a system, where its GPUs are the row's."""
    plain, words = re.sub(r"[ .]", "-", name).lower(), _words(gpu)
    known = next((file for (system, gpus), file in _SYSTEMS.items() if system == plain and _words(gpus) <= words), plain)
    if known not in catalog.names("clusters"):
        return None
    cluster = _load_cluster(known)
    return cluster if words & _words(cluster.device.name) else None


@cache
def _alike_cluster(gpu: str, per_node: int) -> Cluster | None:
    """The first shipped with such GPUs, as many of them in a node as the row says if it does."""
    alike = (cluster for cluster in map(_load_cluster, catalog.names("clusters")) if _words(gpu) <= _words(cluster.device.name))
    return next((cluster for cluster in alike if per_node in (0, cluster.node.devices)), None)


def _words(gpu: str) -> set[str]:
    """Of a GPU's name, but for what is in brackets."""
    return set(re.split(r"[- ]+", re.sub(r"\(.*\)", "", gpu).strip()))


@cache
def _load_cluster(name: str) -> Cluster:
    return load_cluster(catalog.find_part("cluster", name, Path()))


@cache
def _model(name: str, seq_len: str) -> AnyModel:
    """The shipped model of that name, whatever its hyphens. Raises InputError, or what `load_model` does."""
    plain = re.sub(r"v1\.5|[^a-z0-9]", "", name.lower())
    reference = next((known for known in catalog.names("models") if known.replace("-", "") == plain), None)
    if reference is None:
        raise InputError(f"unknown model: {name or 'none stated'}")
    changes: dict[str, Any] = {"sequence": int(seq_len)} if _count(seq_len) else {}
    # tf_cnn_benchmarks leaves Inception's second classifier out
    return load_model(reference, **changes | ({"auxiliary": False} if reference.startswith("inception") else {}))


def _precision(row: Row) -> Precision:
    text = row.get("precision", "").lower()
    found = _PRECISIONS.get(text) or next((known for known in get_args(Precision) if known == text), None)
    if found is None:
        raise InputError(f"unknown precision: {text or 'none stated'}")
    return found


def _optimizer(row: Row) -> tuple[Optimizer, bool]:
    """The optimizer, and whether the row says it: in its column, or in the method's words. Else momentum is assumed."""
    text = f"{row.get('optimizer', '')} {row.get('method', '')}".lower()
    found = next((known for known in get_args(Optimizer) if re.search(rf"\b{known}\b", text)), None)
    return found or "momentum", found is not None


def _passes(row: Row) -> int:
    """Passes whose gradients are added up in a step."""
    return _count(row.get("grad_accum")) or 1


def _batch(row: Row) -> int:
    """Samples of a pass; where it is not said, the largest power of two that fits into the device's memory."""
    return _count(row.get("batch_per_gpu")) or _largest_batch(_hashable(row))


@cache
def _largest_batch(row: tuple[tuple[str, str], ...]) -> int:
    given = dict(row)
    cluster, batch = _cluster(given).model_copy(update={"nodes": 1}), 1

    training = {"precision": _precision(given), "optimizer": _optimizer(given)[0]}
    framework, model = _framework(given), _model(given.get("model", ""), given.get("seq_len", ""))

    def fits(samples: int) -> bool:
        parts = {"model": model, "cluster": cluster, "strategy": {"kind": "data_parallel"}, "training": training} | framework
        return memory(Scenario.model_validate(parts | {"batch": {"total": samples}})).fits

    while batch < _LARGEST_BATCH and fits(2 * batch):
        batch *= 2
    return batch


def _assumed(row: Row) -> tuple[str, ...]:
    """Columns that are blank and matter."""
    several = _number(row, "gpus") > _cluster(row).node.devices
    blanks = {
        "batch_per_gpu": not _count(row.get("batch_per_gpu")),
        "optimizer": not _optimizer(row)[1],
        "software": software_of(row) is None,
        "inter_node": several and "not stated" in (row.get("inter_node") or "not stated"),
        "cluster": _named_cluster(row.get("cluster", ""), row.get("gpu", "")) is None,
    }
    return tuple(column for column, is_blank in blanks.items() if is_blank)


def _number(row: Row, column: str) -> int:
    """A whole number above zero. Raises InputError."""
    found = _count(row.get(column))
    if not found:
        raise InputError(f"no number of {column}")
    return found


def _count(text: str | None) -> int:
    return int(text) if text and re.fullmatch("[0-9]{1,7}", text) else 0


def _rate(row: Row) -> float:
    """Samples per second as measured. Raises InputError."""
    try:
        per_s = float(row.get("samples_per_s", ""))
    except ValueError:
        per_s = math.nan
    if not 0 < per_s < math.inf:
        raise InputError("no samples per second")
    return per_s


def _hashable(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(row.items()))


@cache
def _shipped_rows() -> tuple[Row, ...]:
    with (catalog.ROOT / "published" / "data_parallel_scaling.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
