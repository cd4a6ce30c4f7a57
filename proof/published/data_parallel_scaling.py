"""Predictions of published data-parallel scaling, from each series' run on the fewest GPUs.

Rows that differ only in the number of GPUs form a series. Its base, the run on the fewest GPUs, determines the seconds of work
of one device per step, such that the prediction of the base, including communication, equals its measurement. The base is not
scored.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final, get_args

import numpy as np
from pydantic import ValidationError

from scaleproof.proof.published.calibrations import shipped_fits
from scaleproof.proof.published.prediction import Options, Prediction, Uncertainty
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Optimizer, Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.units import parse_Bps
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program
from scaleproof.simulator.published.clusters import name_words, nodes_of
from scaleproof.simulator.published.training_runs import software_of
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.error_model import MODEL, ErrorModel, case_of_scenario
from scaleproof.simulator.uncertainty.prediction_interval import PredictionInterval, spread

Row = Mapping[str, str]

_FITTED: Final = shipped_fits("data_parallel_scaling")
# Constants of shipped frameworks, and the rows that they were fitted on, which are not scored.
CALIBRATION: Final = tuple(f"{one.constants}: {', '.join(one.rows)}" for one in _FITTED)
_FITTED_ROWS: Final = frozenset(row for one in _FITTED for row in one.rows)
_SERIES: Final = ("source_set", "model", "cluster", "gpu", "batch_per_gpu", "seq_len", "precision", "software")
_SHAPE: Final = ("gpus", "nodes", "method", "servers", "grad_accum", "optimizer")
_PAIRS: Final = ("model", "gpus", "seq_len")
# Systems without a shipped file of their name, by name and words of the GPU's.
_SYSTEMS: Final = {
    ("dgx-1", "V100-16GB"): "dgx1-v100-16gb", ("dgx-1", "V100-32GB"): "dgx1-v100", ("dgx-1", "P100"): "dgx1",
    ("dgx-a100", "A100-40GB"): "dgx-a100-40gb", ("dgx-a100-cluster", "A100-80GB"): "dgx-a100",
    ("dgx-a100-cluster", "A100-40GB"): "dgx-a100-40gb", ("aws-p2-8xlarge", "K80"): "ec2d",
}  # fmt: skip
_PRECISIONS: Final[dict[str, Precision]] = {"mixed fp16": "fp16", "mixed": "fp16", "amp": "fp16", "mixed bf16": "bf16"}
_LARGEST_BATCH: Final = 1024
# Relative error at which the prediction of the base has converged, and the maximum number of iterations.
_CLOSE: Final = 1e-7
_MOST_TRIES: Final = 50
# Horovod's fusion buffer before version 0.21, as the rows have it (horovod/horovod, pull request 2468).
_FUSED: Final = "64 MiB"
# TensorFlow sends each variable separately; small ones are joined here to reduce the number of messages.
_SENT_SEPARATELY: Final[dict[str, Any]] = {"overlap": True, "bucket": "4 MiB"}
_load_cluster = functools.cache(load_cluster)


def predict(row: Row, options: Options = Options()) -> Prediction:  # noqa: B008 (it never changes)
    """Predicted samples/s of a row whose base is in the shipped table."""
    return predict_among(row, (), options)


def predict_among(
    row: Row,
    rows: Sequence[Row],
    options: Options = Options(),  # noqa: B008 (it never changes)
) -> Prediction:
    """Predicted samples/s of a row of a table; its base is in that table or in the shipped one.

    Rows that cannot be predicted are skipped with the reason.
    """
    source = row.get("source_set") or "not named"
    if row.get("id") in _FITTED_ROWS:
        return Prediction(source, skipped="constants were fitted on it")
    try:
        measured, scenario = _rate(row), scenario_among(row, rows, options.ablate)
        if scenario is None:
            return Prediction(source, skipped="the base that the rest is predicted from")
        predicted = scenario.total_samples / _step_s(scenario)
        found = _interval(scenario, options.errors(source))
    except ScaleproofError as error:
        return Prediction(source, skipped=str(error).partition(";")[0])
    except ValidationError as error:
        return Prediction(source, skipped=f"no scenario: {error.errors()[0]['msg']}")
    interval = predicted / found.high, predicted / found.low
    uncertainty = Uncertainty(case_of_scenario(scenario), found.quantities_deviation, found.exposed, is_rate=True)
    inputs, pairs = (tuple(row.get(column, "") for column in columns) for columns in ((*_SERIES, *_SHAPE), _PAIRS))
    return Prediction(
        source, predicted, measured, assumed=_assumed(row), inputs=inputs, pairs=pairs, interval=interval,
        source=source, uncertainty=uncertainty, nodes=scenario.cluster.nodes, framework=scenario.framework.name,
    )  # fmt: skip


def scenario_among(row: Row, rows: Sequence[Row], ablate: tuple[str, ...] = ()) -> Scenario | None:
    """Scenario of a row of a table with the work of a device by its base; None for the base. Raises InputError."""
    base, base_per_s = _base(row, (*rows, *_shipped_rows()))
    if _gpus(row) == _gpus(base):
        return None
    return _scenario(row, _device_s(_hashable(base), base_per_s, ablate), ablate)


def _base(row: Row, rows: Sequence[Row]) -> tuple[Row, float]:
    """The row of the series on the fewest GPUs, and its samples/s (the mean of several). A run on one GPU is also a base of
    software that adds synchronisation to its own. Raises InputError."""
    series = [other for other in rows if all(other.get(column, "") == row.get(column, "") for column in _SERIES[:-1])]
    software = row.get("software", "")
    series = [
        other
        for other in series
        if other.get("software", "") == software
        or (other.get("gpus") == "1" and software.startswith(f"{other.get('software')}, "))
    ]
    known = [(int(other["gpus"]), other) for other in series if re.fullmatch("[1-9][0-9]{0,6}", other.get("gpus", ""))]
    fewest = min((gpus for gpus, _ in known), default=0)
    bases = [other for gpus, other in known if gpus == fewest]
    if not bases:
        raise InputError("no run on fewer GPUs to predict from")
    return bases[0], fmean(_rate(base) for base in bases)


@functools.cache
def _device_s(base_row: tuple[tuple[str, str], ...], samples_per_s: float, ablate: tuple[str, ...]) -> float:
    """Seconds of work of one device per batch with which the base's prediction equals its measurement. Raises InputError."""
    base = dict(base_row)
    passes = _passes(base)
    measured_s = _gpus(base) * _batch(base) * passes / samples_per_s
    device_s = measured_s / passes
    for _ in range(_MOST_TRIES):
        over_s = _step_s(_scenario(base, device_s, ablate)) - measured_s
        device_s -= over_s / passes
        if device_s <= 0:
            break
        if abs(over_s) < _CLOSE * measured_s:
            return device_s
    raise InputError("the base's communication alone is predicted to take longer than its step")


def _step_s(scenario: Scenario) -> float:
    """Seconds of a step of all workers."""
    if _is_asynchronous(scenario):
        return _busiest_s(compile_step(scenario.strategy, job_of(scenario)))
    return timed(scenario).step_time_s


def _interval(scenario: Scenario, errors: ErrorModel) -> PredictionInterval:
    """90 % prediction interval of the step time; of asynchronous workers, that of the model error alone."""
    if not _is_asynchronous(scenario):
        return spread(scenario, errors)
    low, high = case_of_scenario(scenario).log_ends(scenario.cluster, errors)
    return PredictionInterval(math.exp(float(low)), math.exp(float(high)), {MODEL: 1.0})


def _is_asynchronous(scenario: Scenario) -> bool:
    return isinstance(scenario.strategy, ParameterServer) and scenario.strategy.mode == "asynchronous"


def _busiest_s(program: Program) -> float:
    """Seconds per step of the busiest worker, server or link.

    With many asynchronous workers, the step time approaches this asymptotic bound of closed queueing networks (Denning & Buzen
    1978). Simulating all their messages would take too long.
    """
    routes, moves = program.routes, program.kind == Kind.TRANSFER
    on_route = np.bincount(program.route[moves], program.amount[moves], len(routes.resources))
    used = on_route[routes.resources.keys()] * routes.per_unit / program.resources.capacity[routes.resources.values]
    serves, computes = program.kind == Kind.SERVE, program.stream == MAIN_STREAM
    work_s = np.where(serves, program.requests * program.amount + program.update_s, program.amount * computes)
    busy_s = np.bincount(program.rank, work_s), np.bincount(routes.resources.values, used, minlength=1)
    return float(max(seconds.max() for seconds in busy_s))


def _scenario(row: Row, device_s: float, ablate: tuple[str, ...] = ()) -> Scenario:
    """Scenario of the row, with `device_s` seconds of device work per batch, without the mechanisms of frameworks named by
    `ablate`. Raises ScaleproofError or pydantic's error."""
    gpus, batch = _gpus(row), _batch(row)
    cluster = _cluster(row)
    strategy = _strategy(row, cluster)
    measured = {"samples": batch, "time": f"{device_s} s"}
    return Scenario.model_validate({
        **_framework(row, ablate),
        **_input(row),
        "model": _model(row.get("model", ""), row.get("seq_len", "")),
        "cluster": _used_cluster(cluster, row, strategy),
        "strategy": strategy,
        "batch": {"total": gpus * batch * _passes(row)},
        "training": {"precision": _precision(row), "optimizer": _optimizer(row)[0], "measured_step": measured},
    })  # fmt: skip


def _framework(row: Row, ablate: tuple[str, ...] = ()) -> dict[str, Any]:
    """Field `framework` of a scenario for the row's software; empty if it is unknown, so that the default applies."""
    known = software_of(row)
    return {} if known is None else {"framework": functools.reduce(Framework.ablated, ablate, shipped(known["framework"]))}


def _input(row: Row) -> dict[str, Any]:
    """Field `input` of a scenario for the loader workers that the row's software names; empty if it names none."""
    workers = re.search(r"(\d+) loader workers", row.get("software", ""))
    decoding = (software_of(row) or {}).get("input")
    return {"input": decoding | {"cores": int(workers[1])}} if workers and decoding else {}


def _strategy(row: Row, cluster: Cluster) -> dict[str, Any]:
    """Strategy of the row's method. Raises InputError if it is unknown."""
    method, gpus = row.get("method", "").lower(), _gpus(row)
    if "parameter_server" in method or "distributed_replicated" in method or "no nccl" in method:
        return _servers(method, row, cluster)
    if not any(word in method for word in ("nccl", "allreduce", "horovod", "ddp", "single gpu")):
        raise InputError(f"unknown method: {method or 'none stated'}")
    strategy: dict[str, Any] = {"kind": "data_parallel", "workers": gpus, "microbatches": _passes(row)}
    if "gradient accumulation" in method:
        # NVIDIA/DeepLearningExamples: gradients are reduced after the last pass; the PyTorch script joins them into one bucket
        return strategy | {"overlap": False}
    if "replicated" in method:
        # each variable separately; TensorFlow's contrib/nccl makes NCCL wait for all work that the host has issued to a device,
        # which is the whole backward pass
        return strategy | {"bucket": "1 B", "first_bucket": "1 B", "overlap": False}
    strategy |= (software_of(row) or {}).get("strategy", {})
    has_own_buckets = "ddp" in method or "mirrored" in method
    return strategy if has_own_buckets else strategy | {"bucket": _FUSED, "first_bucket": _FUSED}


def _servers(method: str, row: Row, cluster: Cluster) -> dict[str, Any]:
    """Strategy for tf_cnn_benchmarks' variables at parameter servers, or divided among GPUs as if they were servers.

    Gradients are sent when they are computed, and variables when they are needed. Servers, or GPUs, hold whole tensors,
    assigned by size, unless the row's software cuts them. A machine's worker sums the gradients of its GPUs first, and reads
    each variable once (variable_mgr.py of 2017: add_n on the worker's processor, and OverrideCachingDevice). All wait at the
    end of each step, the script's default, but where the row has the best of several update modes: then gradients are
    applied on arrival. On a single machine every GPU has a link of its own to its host's memory, as if an equal part of the
    variables were at the end of each.
    """
    gpus = _gpus(row)
    servers: dict[str, Any] = {"kind": "parameter_server", "workers": gpus, "placement": "colocated"}
    if _is_local(row):
        return servers | _SENT_SEPARATELY | {"servers": gpus, "shard": "bytes" if " cpu" in method else "tensor"}
    machines = -(-gpus // cluster.node.devices)
    servers |= {"servers": _count(row.get("servers")) or machines, "shard": "tensor", "two_level": cluster.node.devices > 1}
    servers |= (software_of(row) or {}).get("servers", {})
    applies_on_arrival = "distributed_replicated" not in method and "update mode" in row.get("note", "")
    return servers | ({"mode": "asynchronous"} if applies_on_arrival else _SENT_SEPARATELY)


def _is_local(row: Row) -> bool:
    """Whether variables are in the process of a single machine, without separate servers."""
    is_distributed = "distributed" in row.get("method", "").lower() or bool(row.get("servers"))
    return not is_distributed and _count(row.get("nodes")) <= 1


def _used_cluster(cluster: Cluster, row: Row, strategy: Mapping[str, Any]) -> Cluster:
    """The nodes that the GPUs need, or those that the row has. If GPUs hold variables, their own memory serves them, or a share
    of the host's memory."""
    node, gpus = cluster.node, _gpus(row)
    if strategy["kind"] == "parameter_server" and _is_local(row):
        host_Bps = node.memory_bandwidth_Bps
        shared_Bps = host_Bps / gpus if host_Bps and strategy["shard"] == "bytes" else None
        node = node.model_copy(update={"memory_bandwidth_Bps": shared_Bps})
    nodes = max(_count(row.get("nodes")), -(-gpus // node.devices))
    return cluster.model_copy(update={"node": node.model_copy(update={"used": -(-gpus // nodes)}), "nodes": nodes})


def _cluster(row: Row) -> Cluster:
    """The shipped cluster of the row's name, otherwise one with such GPUs, at least as many per node, and the network rate that
    the row states. Raises InputError."""
    name, gpu, per_node = row.get("cluster", ""), row.get("gpu", ""), _count(row.get("gpus_per_node"))
    several = _count(row.get("nodes")) > 1
    cluster = _named_cluster(name, gpu)
    if cluster is None:
        cluster = nodes_of(gpu, per_node or 8, networked=True)
        stated = re.match(r"\d+ Gbit/s", row.get("inter_node") or "")
        if stated and cluster.network is not None:
            network = cluster.network.model_copy(update={"bandwidth_Bps": parse_Bps(stated[0])})
            cluster = cluster.model_copy(update={"network": network})
    if (several or _gpus(row) > cluster.node.devices) and cluster.network is None:
        raise InputError(f"no network between nodes of {name}")
    return cluster


@functools.cache
def _named_cluster(name: str, gpu: str) -> Cluster | None:
    """The shipped cluster with a system's name if it has the row's GPUs; otherwise None."""
    plain, own = re.sub(r"[ .]", "-", name).lower(), name_words(gpu)
    known = next((file for (system, gpus), file in _SYSTEMS.items() if system == plain and name_words(gpus) <= own), plain)
    if known not in catalog.names("clusters"):
        return None
    cluster = _load_cluster(known)
    return cluster if own & name_words(cluster.device.name) else None


@functools.cache
def _model(name: str, seq_len: str) -> AnyModel:
    """The shipped model of that name, ignoring hyphens and the data that it is trained on. Raises InputError, or what
    `load_model` does."""
    plain = re.sub(r"v1\.5|\(squad\)|[^a-z0-9]", "", name.lower())
    reference = next((known for known in catalog.names("models") if known.replace("-", "") == plain), None)
    if reference is None:
        raise InputError(f"unknown model: {name or 'none stated'}")
    changes: dict[str, Any] = {"sequence": int(seq_len)} if _count(seq_len) else {}
    # tf_cnn_benchmarks omits Inception's auxiliary classifier
    return load_model(reference, **changes | ({"auxiliary": False} if reference.startswith("inception") else {}))


def _precision(row: Row) -> Precision:
    text = row.get("precision", "").lower()
    known = _PRECISIONS.get(text) or next((precision for precision in get_args(Precision) if precision == text), None)
    if known is None:
        raise InputError(f"unknown precision: {text or 'none stated'}")
    return known


def _optimizer(row: Row) -> tuple[Optimizer, bool]:
    """The optimizer, and whether the row states it, in its column or in the method. Otherwise momentum is assumed."""
    text = f"{row.get('optimizer', '')} {row.get('method', '')}".lower()
    stated = next((known for known in get_args(Optimizer) if re.search(rf"\b{known}\b", text)), None)
    return stated or "momentum", stated is not None


def _passes(row: Row) -> int:
    """Passes whose gradients are accumulated in a step."""
    return _count(row.get("grad_accum")) or 1


def _batch(row: Row) -> int:
    """Samples of a pass; if not stated, the largest power of two that fits into the device's memory."""
    return _count(row.get("batch_per_gpu")) or _largest_batch(_hashable(row))


@functools.cache
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
    """Names of columns that are blank and matter."""
    several = _gpus(row) > _cluster(row).node.devices
    blanks = {
        "batch_per_gpu": not _count(row.get("batch_per_gpu")),
        "optimizer": not _optimizer(row)[1],
        "software": software_of(row) is None,
        "inter_node": several and "not stated" in (row.get("inter_node") or "not stated"),
        "cluster": _named_cluster(row.get("cluster", ""), row.get("gpu", "")) is None,
    }
    return tuple(column for column, is_blank in blanks.items() if is_blank)


def _gpus(row: Row) -> int:
    """The number of GPUs. Raises InputError if the row has none."""
    gpus = _count(row.get("gpus"))
    if not gpus:
        raise InputError("no number of gpus")
    return gpus


def _count(text: str | None) -> int:
    return int(text) if text and re.fullmatch("[0-9]{1,7}", text) else 0


def _rate(row: Row) -> float:
    """Measured samples/s. Raises InputError if the row has no rate."""
    try:
        per_s = float(row.get("samples_per_s", ""))
    except ValueError:
        per_s = math.nan
    if not 0 < per_s < math.inf:
        raise InputError("no samples per second")
    return per_s


def _hashable(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(row.items()))


@functools.cache
def _shipped_rows() -> tuple[Row, ...]:
    with (catalog.ROOT / "published" / "data_parallel_scaling.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
