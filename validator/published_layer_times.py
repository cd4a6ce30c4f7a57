"""Published times of one transformer layer, predicted: operators on the device, collectives among the ranks that share it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, get_args

from simulator import library
from simulator.cluster import Cluster
from simulator.cluster.cost import processors_taken
from simulator.cluster.device import ELEMENT_BYTES, Precision
from simulator.collective import collective_time
from simulator.errors import InputError, ScaleproofError
from simulator.model import Gpt, Layer
from simulator.model.layers import Shard
from simulator.scenario import load_cluster
from simulator.spread import Spread, of_closed_form
from validator.published import Prediction

Row = Mapping[str, str]

# A cluster of each GPU whose nodes have what the tables' systems have.
_CLUSTERS: Final = {
    "A100-40GB-SXM": "dgx-a100-40gb",
    "A100-80GB-SXM": "selene-a100",
    "H100-80GB-SXM": "dgx-h100",
    "V100-32GB-SXM3": "dgx-2",
}
_SHAPE: Final = ("hidden", "heads", "seq_len", "gpu", "tp", "microbatch_seqs", "precision", "sequence_parallel")
CALIBRATION: Final[tuple[str, ...]] = ()


def predict(row: Row) -> list[Prediction]:
    """The times of the forward and of the backward pass. What cannot be predicted is skipped with its reason."""
    source = row.get("source_set") or "not named"
    sets = [f"{source} {name}" for name in ("forward", "backward")]
    try:
        measured_s = [float(row[name]) * 1e-3 for name in ("forward_ms", "backward_ms")]
        predicted_s, told = layer_s(row), _spreads(row)
    except ScaleproofError as error:
        return [Prediction(name, skipped=str(error).partition(";")[0]) for name in sets]
    except ValueError:
        return [Prediction(name, skipped="no time, or no layer that can be read") for name in sets]
    shape = tuple(row[name] for name in _SHAPE)
    # what is recomputed changes the backward pass alone
    inputs = [shape, (*shape, row["recompute"])]
    passes = zip(sets, predicted_s, measured_s, inputs, told, strict=True)
    return [
        Prediction(name, predicted, measured, inputs=given, interval=(spread.low * predicted, spread.high * predicted))
        for name, predicted, measured, given, spread in passes
    ]


def _spreads(row: Row) -> list[Spread]:
    """How far each pass may be off."""
    cluster = _cluster(row["gpu"])
    return [of_closed_form(lambda on: layer_s(row, on)[0], cluster), of_closed_form(lambda on: layer_s(row, on)[1], cluster)]


def layer_s(row: Row, cluster: Cluster | None = None) -> tuple[float, float]:
    """Seconds of one layer's forward and backward pass, in which it recomputes what the row says, on the row's cluster if none
    is given.

    Its attention is of before flash attention, with dropout, as Megatron-LM of 2022 had it. Raises InputError.
    """
    hidden, heads, tokens, ranks, samples = (int(row[name]) for name in ("hidden", "heads", "seq_len", "tp", "microbatch_seqs"))
    cluster, precision = cluster or _cluster(row["gpu"]), _precision(row["precision"])
    gpt = Gpt(layers=1, hidden=hidden, heads=heads, vocabulary=ranks, sequence=tokens, flash=False, dropout=True)
    layer = gpt.build_layers(Shard(ranks, row["sequence_parallel"] == "yes"))[1]
    forward_s, backward_s = cluster.device.layer_s(layer, samples, precision)
    sample_bytes = samples * ELEMENT_BYTES[precision]
    forward_s += _exchanges_s(layer, False, sample_bytes, ranks, cluster)
    backward_s += _exchanges_s(layer, True, sample_bytes, ranks, cluster)
    if row["recompute"] == "selective":
        backward_s += cluster.device.scores_s(layer, samples, precision)
    elif row["recompute"] == "full":
        backward_s += forward_s
    elif row["recompute"] != "none":
        raise InputError(f"unknown recomputation: {row['recompute']}")
    return forward_s, backward_s


def _exchanges_s(layer: Layer, backward: bool, sample_bytes: float, ranks: int, cluster: Cluster) -> float:
    """Those that are waited for take their time; those hidden take processors from what computes."""
    taken = processors_taken(cluster)
    return sum(
        collective_time(exchange.op, int(exchange.elements * sample_bytes), ranks, cluster)
        * (taken if exchange.hidden else 1.0)
        for exchange in layer.exchanges
        if exchange.backward == backward
    )


@cache
def _cluster(gpu: str) -> Cluster:
    """A shipped cluster with that GPU: the one named above, else the first whose device's name has all words of it."""
    if gpu in _CLUSTERS:
        return _shipped(_CLUSTERS[gpu])
    words = set(gpu.split("-"))
    for name in library.names("clusters"):
        if words <= set(_shipped(name).device.name.split("-")):
            return _shipped(name)
    raise InputError(f"no cluster for GPU: {gpu}")


@cache
def _shipped(name: str) -> Cluster:
    return load_cluster(library.find_part("cluster", name, Path()))


def _precision(text: str) -> Precision:
    found: Precision | None = next((known for known in get_args(Precision) if known == text), None)
    if found is None:
        raise InputError(f"unknown precision: {text}")
    return found
