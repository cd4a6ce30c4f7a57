"""Capabilities of real training: what ranks can be given, and how they train it.

Does not import torch, so that scenarios are refused before anything starts.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Final

from scaleproof.simulator.model.recommender.lookups import RowTable
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.parameter_server import sent_rows
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario

# Kinds of strategy that are trained; captured scripts train by themselves.
KINDS: Final = (
    "data_parallel", "local_sgd", "gather_average", "model_parallel", "parameter_server", "pipeline", "hybrid",
)  # fmt: skip
PRECISIONS: Final = ("fp64", "fp32", "bf16", "fp16")
# Optimizers that update each element by itself.
OPTIMIZERS: Final = ("sgd", "momentum", "adam", "lion")
# Strategies whose ranks all update the parameters that they train, from gradients over the whole batch.
UPDATE_TOGETHER: Final = ("data_parallel", "pipeline", "hybrid", "model_parallel")
ALGORITHMS: Final = ("ring",)
# Schedules in which torch posts a receive when a rank reaches the pass that needs it; 1f1b can be run either way.
NEVER_AHEAD: Final = ("gpipe", "looped_bfs")


def splits_backward(plan: Plan) -> bool:
    """Whether gradients of weights have backward passes of their own."""
    return plan.stages > 1 and plan.schedule not in WHOLE


def trains_by_layers(scenario: Scenario) -> bool:
    """Whether ranks train layers that can be separated: those of stages, of shards, of recomputation and of buckets."""
    strategy, training = scenario.strategy, scenario.training
    staged = strategy.kind in ("pipeline", "hybrid", "model_parallel")
    pushes_buckets = isinstance(strategy, ParameterServer) and strategy.overlap
    return staged or pushes_buckets or training.zero > 0 or training.recompute.kind != "none"


def sent_tables(scenario: Scenario) -> dict[int, RowTable]:
    """The tables of which workers of parameter servers push and pull rows, by number of the tensor in the model."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer):
        return {}
    layers = scenario.model.build_layers()
    before = accumulate((len(layer.tensors) for layer in layers), initial=0)
    return {
        first + table.tensor: table
        for number, first in zip(range(len(layers)), before, strict=False)
        for table in sent_rows(layers, number, strategy.sparse)
    }


def is_padded(scenario: Scenario) -> bool:
    """Whether ranks train on samples with padding."""
    lengths = scenario.batch.lengths
    return scenario.compute == "real" and lengths is not None and lengths.batches != "packed"


def has_documents(scenario: Scenario) -> bool:
    """Whether the tokens of a sample attend only to their own documents, which layers read then."""
    lengths = scenario.batch.lengths
    return scenario.compute == "real" and lengths is not None and lengths.batches == "packed" and not lengths.across


def uses_gpus(scenario: Scenario) -> bool:
    """Whether ranks use GPUs: not if the cluster gives the cores of a node, nor with emulated compute."""
    return scenario.cluster.node.cores is None and scenario.compute == "real"


def supports_v_shape() -> bool:
    """Whether torch's pipelines support neighbouring stages on one rank, as V-shaped schedules have (not in 2.11, in 2.13)."""
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:
        # a missing torch is reported when it is needed
        return True
    return (int(major), int(minor)) >= (2, 13)
