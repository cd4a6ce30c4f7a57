"""Recommenders that train for real: tensors and lookups as predicted, and parameters equal to those of one process."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model import Dlrm
from scaleproof.simulator.model.layers import boundary_elements, cut_into_stages
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.predict import predict
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.train.models import models
from scaleproof.validator.train.samples import arrays
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import collectives, deviation, deviation_of, in_bulk

_TABLES: list[dict[str, Any]] = [{"rows": 30, "dim": 8, "pooling": 2, "count": 2}, {"rows": 8, "dim": 8, "count": 2}]
_DENSE: dict[str, Any] = {"kind": "dlrm", "tables": _TABLES, "dense": 3, "bottom": [6, 8], "top": [5, 1]}
_NARROW: dict[str, Any] = {"kind": "dlrm", "tables": _TABLES, "bottom": [6, 4]}
MODELS: dict[str, dict[str, Any]] = {
    "dot": _DENSE,
    "cat": _DENSE | {"interaction": "cat", "dropout": 0.1},
    "dcn": _DENSE | {"interaction": "dcn", "cross_layers": 2, "cross_rank": 4},
    "full dcn": _DENSE | {"interaction": "dcn", "cross_layers": 1},
    "neumf": _NARROW | {"interaction": "neumf", "top": [1]},
    "towers": _NARROW | {"interaction": "towers"},
    "towers with top": _NARROW | {"interaction": "towers", "top": [3, 1]},
}


@pytest.mark.parametrize("name", MODELS)
def test_modules_have_the_tensors_and_outputs_of_the_predicted_layers(name: str) -> None:
    model = Dlrm.model_validate(MODELS[name])
    layers = model.build_layers()
    modules = models.build(model, range(len(layers)), seed=0)
    assert [tuple(one.numel() for one in module.parameters()) for module in modules] == [one.tensors for one in layers]
    inputs, _ = arrays(model, 5, np.random.default_rng(0))
    outputs = [modules[0](*(torch.tensor(one, dtype=torch.float32 if one.dtype.kind == "f" else None) for one in inputs))]
    for number, module in enumerate(modules[1:], start=1):
        outputs.append(module(outputs[0], outputs[-1]) if 1 <= number <= model.cross_layers else module(outputs[-1]))
    assert [output.shape for output in outputs] == [(5, one.output_elements) for one in layers]


def test_dot_products_are_those_of_all_pairs() -> None:
    model = Dlrm.model_validate(_DENSE)
    (interaction,) = models.build(model, [1], seed=0)
    vectors = torch.randn(1, 5, 8)
    expected = [float(vectors[0, i] @ vectors[0, j]) for i in range(5) for j in range(i)]
    result = interaction(vectors.flatten(1))[0]
    torch.testing.assert_close(result, torch.cat([vectors[0, -1], torch.tensor(expected)]))


def test_rows_are_drawn_as_often_as_predicted() -> None:
    table = {"rows": 5000, "dim": 4, "pooling": 4, "skew": 1.2}
    model = Dlrm.model_validate({"kind": "dlrm", "tables": [table], "top": [1], "interaction": "cat"})
    (rows,), _ = arrays(model, 2000, np.random.default_rng(0))
    often = np.sort(np.bincount(rows.ravel(), minlength=5000))[::-1]
    assert rows.shape == (2000, 4)
    distribution = model.tables[0].distribution
    assert np.count_nonzero(often) == pytest.approx(distribution.distinct(8000), rel=0.03)
    assert often[:10].sum() / 8000 == pytest.approx(distribution.share_of(10), rel=0.05)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ({"kind": "data_parallel", "workers": 2, "tables": {"shard": "data"}}, "dot"),
        ({"kind": "data_parallel", "workers": 2}, "dcn"),
        *in_bulk(
            ({"kind": "data_parallel", "workers": 2, "microbatches": 2}, "neumf"),
            ({"kind": "data_parallel", "workers": 4, "overlap": False}, "towers"),
            ({"kind": "pipeline", "stages": 2, "microbatches": 2}, "dot"),
            ({"kind": "pipeline", "stages": 3, "microbatches": 4, "schedule": "gpipe"}, "dcn"),
            ({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}, "full dcn"),
        ),
    ],
)
def test_parameters_equal_those_of_one_process(strategy: dict[str, Any], name: str, make_scenario: MakeScenario) -> None:
    assert deviation(make_scenario(strategy, MODELS[name], precision="fp64")) < 1e-9


def test_stages_of_cross_layers_pass_the_first_layers_outputs_on(make_scenario: MakeScenario) -> None:
    """Activations of the layer before and those of the first one are as wide as all features, in both directions."""
    model = MODELS["dcn"] | {"cross_layers": 3}
    scenario = make_scenario({"kind": "pipeline", "stages": 2, "microbatches": 2}, model, precision="fp64")
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    layers = scenario.model.build_layers()
    begin = cut_into_stages(layers, 2)[1].start
    assert layers[begin].name == "cross2"
    expected_bytes = 8 * 8 * 2 * layers[0].output_elements
    assert 8 * 8 * boundary_elements(layers)[begin - 1] == expected_bytes
    for spans in (run.spans, predict(scenario).spans):
        assert spans is not None
        assert set(spans.where(spans.phase == Phase.SEND).size_bytes.tolist()) - {0.0} == {expected_bytes}


def _sharded(shard: str, workers: int = 2, **others: Any) -> dict[str, Any]:
    return {"kind": "data_parallel", "workers": workers, "tables": {"shard": shard, "optimizer": "sgd", **others}}


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (_sharded("table"), "dot"),
        (_sharded("row", optimizer="rowwise_adagrad"), "dot"),
        (_sharded("column"), "dot"),
        *in_bulk(
            # three of eight workers have no table
            *((_sharded("table", 8), name) for name in ("dcn", "neumf", "towers")),
            (_sharded("column", 8, replicate_below=10) | {"overlap": False}, "towers with top"),
            (_sharded("row", 4, replicate_below=10), "full dcn"),
            (_sharded("table", 4, optimizer="rowwise_adagrad") | {"overlap": False}, "dcn"),
            (_sharded("column", optimizer="adagrad"), "dot"),
            (_sharded("table", plan=(1, 1, 0, 1)), "dot"),
        ),
    ],
)
def test_divided_tables_equal_those_of_one_process(strategy: dict[str, Any], name: str, make_scenario: MakeScenario) -> None:
    scenario = make_scenario(strategy, MODELS[name], precision="fp64", optimizer="sgd", learning_rate=0.5)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    if name == "dot" and "plan" not in strategy["tables"]:
        layers = scenario.model.build_layers(scenario.strategy.plan.shard)
        samples, element_bytes = scenario.samples_per_worker, 8
        exchanged = [samples * one.elements * (one.element_bytes or element_bytes) for one in layers[0].exchanges]
        dense = element_bytes * sum(layer.trained_parameters for layer in layers)
        # numbers of lookups in each range of rows are not predicted
        counts = [2 * element_bytes] if strategy["tables"]["shard"] == "row" else []
        assert collectives(run) == Counter([*exchanged, dense, *counts])


@pytest.mark.parametrize(
    ("tables", "others", "field"),
    [
        ({"on": "host"}, {}, "on: host"),
        ({"optimizer": "adam"}, {}, "tables.optimizer"),
        ({"shard": "column"}, {}, "rowwise_adagrad of columns"),
        ({"optimizer": "sgd"}, {"zero": 1}, "training.zero"),
        ({"optimizer": "sgd", "overlap_input": True}, {}, "overlap_input"),
    ],
)
def test_what_is_not_trained_is_refused(
    tables: dict[str, Any], others: dict[str, Any], field: str, make_scenario: MakeScenario
) -> None:
    strategy = {"kind": "data_parallel", "workers": 2, "tables": tables}
    scenario = make_scenario(strategy, MODELS["dot"], optimizer="sgd", **others)
    with pytest.raises(InputError, match=field):
        measure(scenario)


_SPARSE = {"kind": "parameter_server", "workers": 2, "servers": 2, "shard": "tensor", "sparse": {"rows": 0.5}}


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({}, "dot"),
        *in_bulk(
            ({"overlap": True, "bucket": "1 KiB"}, "dot"),
            ({"mode": "asynchronous", "servers": 3}, "dcn"),
            ({"mode": "stale_synchronous", "bound": 1, "overlap": True, "bucket": "1 KiB"}, "neumf"),
        ),
    ],
)
def test_servers_train_touched_rows_like_whole_tables(others: dict[str, Any], name: str, make_scenario: MakeScenario) -> None:
    scenario = make_scenario(_SPARSE | others, MODELS[name], precision="fp64", optimizer="sgd", learning_rate=0.5)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    strategy, spans = scenario.strategy, run.spans
    assert isinstance(strategy, ParameterServer)
    assert spans is not None
    limit = strategy.bucket_bytes if strategy.overlap else math.inf
    parts = buckets(scenario.model.build_layers(), strategy.servers, strategy.shard, 8, limit, strategy.sparse, 2, 1)
    pushed = spans.where((spans.rank == 0) & (spans.phase == Phase.SEND)).size_bytes
    assert pushed.max() == pytest.approx(sum(part.pushed_bytes.sum() for part in parts), rel=0.01)
