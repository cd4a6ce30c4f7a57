"""Servers train embeddings of a user's module with `sparse=True` by the rows that samples look up, like one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.record.steps import total_steps
from scaleproof.validator.train.data import share_of, whole_batches
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import deviation_of, in_bulk

_SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 2, "shard": "tensor"}
_OVERLAP = {"overlap": True, "bucket": "1 KiB"}
# Parameters of layers without tables, in 64 bits.
_DENSE_BYTES = 8 * (3 * 8 + 8 + 24 + 1)


def scenario_of(make_scenario: MakeScenario, name: str, strategy: dict[str, Any], **training: Any) -> Scenario:
    model = {"kind": "traced", "source": f"python:tests.validator.train.models.users:{name}"}
    return make_scenario(_SERVERS | strategy, model, steps=3, precision="fp64", optimizer="sgd", **training)


def pushed_bytes(run: Run) -> float:
    """Bytes of a push of the first worker."""
    assert run.spans is not None
    return float(run.spans.where((run.spans.rank == 0) & (run.spans.phase == Phase.SEND)).size_bytes.max())


def rows_bytes(items: int, fields: int) -> int:
    """Bytes of gradients of rows, with the numbers of these and of the reply's."""
    return items * (8 * 8 + 2 * 8) + fields * (4 * 8 + 2 * 8)


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"mode": "asynchronous"},
        *in_bulk(
            _OVERLAP,
            {"mode": "stale_synchronous", "bound": 1},
            {"mode": "asynchronous", **_OVERLAP, "units": 9, "assignment": "dynamic"},
            {"servers": 1, "shard": "bytes", "workers": 3, "backups": 1},
            {"workers": 4, "servers": 3, "shard": "round_robin"},
        ),
    ],
)
def test_parameters_equal_those_of_one_process(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    scenario = scenario_of(make_scenario, "recommender", strategy, batch=12, learning_rate=0.5)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9


def test_messages_have_the_rows_of_the_batch_that_touches_the_most(make_scenario: MakeScenario) -> None:
    scenario = scenario_of(make_scenario, "recommender", {})
    parts = [
        batch.part(share_of(scenario, worker))
        for batch in whole_batches(scenario, range(total_steps(scenario)), torch.device("cpu"), torch.float64)
        for worker in range(2)
    ]
    items = max(len(part.others["data1"].unique()) for part in parts)
    fields = max(len((part.others["data2"] % 20 + torch.tensor([0, 20])).unique()) for part in parts)
    assert 10 < items < 60
    assert pushed_bytes(measure(scenario)) == rows_bytes(items, fields) + _DENSE_BYTES


def test_messages_have_the_rows_that_are_stated_and_the_predicted_bytes(make_scenario: MakeScenario) -> None:
    scenario = scenario_of(make_scenario, "recommender_of_half", {"sparse": {"rows": 0.5}}, batch=32)
    strategy, run = scenario.strategy, measure(scenario)
    assert pushed_bytes(run) == rows_bytes(30, 20) + _DENSE_BYTES
    assert run.spans is not None
    assert isinstance(strategy, ParameterServer)
    replies = run.spans.where((run.spans.rank >= 2) & (run.spans.phase == Phase.SEND))
    pulled_bytes = sum(replies.where(replies.rank == server).size_bytes.max() / 2 for server in (2, 3))
    (predicted,) = buckets(scenario.model.build_layers(), 2, "tensor", 8, math.inf, strategy.sparse, 2, 16)
    assert pushed_bytes(run) == predicted.pushed_bytes.sum()
    assert pulled_bytes == predicted.pulled_bytes.sum()


@pytest.mark.parametrize(
    ("name", "strategy", "training", "message"),
    [
        ("chosen_rows", {}, {}, r"rows of rows\.weight depend on parameters or random numbers, .* build it with sparse=False"),
        ("recommender_with_optimizer", {}, {}, "its optimizer may change rows .* return none, for sgd"),
        ("recommender", {}, {"optimizer": "adam"}, "training.optimizer: adam with sparse=True .* give sgd"),
        ("recommender", {"shard": "bytes"}, {}, "strategy.shard: bytes with sparse=True .* give shard: tensor, or one server"),
    ],
)
def test_tables_that_are_only_predicted_are_refused(
    name: str, strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    scenario = scenario_of(make_scenario, name, strategy)
    scenario = scenario.model_copy(update={"training": scenario.training.model_copy(update=training)})
    with pytest.raises(InputError, match=message):
        check_trainable(scenario)
