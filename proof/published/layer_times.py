"""Predictions of published times of one transformer layer, as the block of a model in training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, get_args

from scaleproof.proof.published.prediction import Options, Prediction
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.error_model import ErrorCase
from scaleproof.simulator.uncertainty.linear_response import of_closed_form

Row = Mapping[str, str]

# A cluster for each GPU whose nodes equal those of the tables' systems.
_CLUSTERS: Final = {
    "A100-40GB-SXM": "dgx-a100-40gb",
    "A100-80GB-SXM": "selene-a100",
    "H100-80GB-SXM": "dgx-h100",
    "V100-32GB-SXM3": "dgx-2",
}
_SHAPE: Final = ("hidden", "heads", "seq_len", "gpu", "tp", "microbatch_seqs", "precision", "sequence_parallel")
# Framework of the tables: Megatron-LM of 2022, which wrote attention scores to memory.
_FRAMEWORK: Final = "megatron-lm-2022"
# Index of the block, between the embedding and the head.
_BLOCK: Final = 1
_RECOMPUTED: Final = ("none", "selective", "full")
CALIBRATION: Final[tuple[str, ...]] = ()
_shipped = cache(load_cluster)


def predict(row: Row, options: Options = Options()) -> list[Prediction]:  # noqa: B008 (it never changes)
    """Predicted times of the forward and of the backward pass. Rows that cannot be predicted are skipped with the reason."""
    source = row.get("source_set") or "not named"
    sets = [f"{source} {name}" for name in ("forward", "backward")]
    try:
        measured_s = [float(row[name]) * 1e-3 for name in ("forward_ms", "backward_ms")]
        predicted_s, intervals_s = layer_s(row), _intervals_s(row)
    except ScaleproofError as error:
        return [Prediction(name, skipped=str(error).partition(";")[0]) for name in sets]
    except ValueError:
        return [Prediction(name, skipped="no time, or no readable layer") for name in sets]
    shape = tuple(row[name] for name in _SHAPE)
    # recomputation changes the backward pass only
    inputs = [shape, (*shape, row["recompute"])]
    passes = zip(sets, predicted_s, measured_s, inputs, intervals_s, strict=True)
    return [
        Prediction(name, predicted, measured, inputs=given, interval=interval_s, framework=_FRAMEWORK)
        for name, predicted, measured, given, interval_s in passes
    ]


def _intervals_s(row: Row) -> list[tuple[float, float]]:
    """Prediction intervals in seconds of the forward and the backward pass."""
    cluster, times_s = _cluster(row["gpu"]), layer_s(row)
    # one source has such rows, to which no error can be fitted
    found = [of_closed_form(lambda on, part=part: layer_s(row, on)[part], cluster, ErrorCase(None)) for part in (0, 1)]  # type: ignore[misc]
    return [(one.low * time_s, one.high * time_s) for one, time_s in zip(found, times_s, strict=True)]


def layer_s(row: Row, cluster: Cluster | None = None) -> tuple[float, float]:
    """Seconds of one layer's forward and backward pass, the latter with recomputation; on the row's cluster by default.

    They are those of the only block of a model, as `predict` times it. Raises ScaleproofError or ValueError.
    """
    scenario = _scenario(row, cluster or _cluster(row["gpu"]))
    costs = with_collectives(scenario.strategy.plan, job_of(scenario)).costs()
    forward_s = costs.forward_s + costs.forward_exchange_s
    backward_s = costs.backward_s + costs.backward_exchange_s
    return float(forward_s[_BLOCK]), float(backward_s[_BLOCK])


def _scenario(row: Row, cluster: Cluster) -> Scenario:
    """One block between an embedding and a head, which do not matter, in one microbatch."""
    hidden, heads, tokens, ranks, samples = (int(row[name]) for name in ("hidden", "heads", "seq_len", "tp", "microbatch_seqs"))
    if row["recompute"] not in _RECOMPUTED:
        raise InputError(f"unknown recomputation: {row['recompute']}")
    framework = shipped(_FRAMEWORK)
    shape = {"layers": 1, "hidden": hidden, "heads": heads, "vocabulary": ranks, "sequence": tokens}
    is_sequence_parallel = row["sequence_parallel"] == "yes" and ranks > 1
    return Scenario.model_validate({
        "model": {"kind": "gpt", **framework.model, **shape},
        "cluster": cluster,
        "framework": framework,
        "strategy": {"kind": "hybrid", "tensor": ranks, "sequence_parallel": is_sequence_parallel},
        "batch": {"total": samples},
        "training": {"precision": _precision(row["precision"]), "optimizer": "adam", "recompute": row["recompute"]},
    })  # fmt: skip


@cache
def _cluster(gpu: str) -> Cluster:
    """A shipped cluster with that GPU: the one in _CLUSTERS, otherwise the first whose device's name has all its words."""
    if gpu in _CLUSTERS:
        return _shipped(_CLUSTERS[gpu])
    words = set(gpu.split("-"))
    for name in catalog.names("clusters"):
        if words <= set(_shipped(name).device.name.split("-")):
            return _shipped(name)
    raise InputError(f"no cluster for GPU: {gpu}")


def _precision(text: str) -> Precision:
    precision: Precision | None = next((known for known in get_args(Precision) if known == text), None)
    if precision is None:
        raise InputError(f"unknown precision: {text}")
    return precision
