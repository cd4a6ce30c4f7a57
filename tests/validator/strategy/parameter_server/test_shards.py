"""Servers store the parameters that the simulator assigns to them, every element once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.parameter_server import Sharding
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.validator.strategy.parameter_server.shards import Layout, lay_out
from scaleproof.validator.train.trained_model import TrainedModel
from tests.validator.conftest import MakeScenario

SHARDINGS = ("bytes", "tensor", "round_robin")


def parts(
    make_scenario: MakeScenario, model: Any, shard: str, servers: int, limit: str | None
) -> tuple[Any, Layout, list[Tensor]]:
    plain = {"kind": "parameter_server", "servers": servers, "shard": shard}
    scenario = make_scenario(plain | ({"overlap": True, "bucket": limit} if limit else {}), model)
    strategy = scenario.strategy
    assert isinstance(strategy, ParameterServer)
    model = TrainedModel(scenario)
    parameters = [parameter.detach() for layer in model.build(model.numbers) for parameter in layer.parameters()]
    return scenario, lay_out(model.shapes(), strategy), parameters


@pytest.mark.parametrize("limit", [None, "2 KiB", "20 KiB"])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("shard", SHARDINGS)
@pytest.mark.parametrize("kind", ["gpt", "mlp"])
def test_message_sizes_equal_predicted_ones(
    kind: str, shard: Sharding, servers: int, limit: str | None, make_scenario: MakeScenario, models: dict[str, Any]
) -> None:
    scenario, layout, _ = parts(make_scenario, models[kind], shard, servers, limit)
    limit_bytes = scenario.strategy.bucket_bytes if limit else float("inf")
    expected = buckets(scenario.model.build_layers(), servers, shard, 4, limit_bytes, None, 1, 1)

    assert [bucket.layer for bucket in layout.buckets] == [bucket.layer for bucket in expected]
    for bucket, predicted in zip(layout.buckets, expected, strict=True):
        for server in range(servers):
            part = bucket.parts.get(server, slice(0, 0))
            assert 4 * (part.stop - part.start) == pytest.approx(predicted.pushed_bytes[server], abs=4), "to one element"


@pytest.mark.parametrize("limit", [None, "2 KiB"])
@pytest.mark.parametrize("shard", SHARDINGS)
def test_server_shards_add_up_to_all_parameters(
    shard: str, limit: str | None, make_scenario: MakeScenario, models: dict[str, Any]
) -> None:
    _, layout, parameters = parts(make_scenario, models["gpt"], shard, 3, limit)
    vector = torch.cat([parameters[tensor].flatten() for tensor in layout.order])
    seen = [torch.zeros(one.numel()) for one in parameters]

    for number, bucket in enumerate(layout.buckets):
        for server, part in bucket.parts.items():
            pieces = layout.ranges(number, server)
            for tensor, begin, end in pieces:
                seen[tensor][begin:end] += 1
            stored = torch.cat([parameters[tensor].flatten()[begin:end] for tensor, begin, end in pieces])
            assert torch.equal(stored, vector[part])

    assert all(bool((one == 1).all()) for one in seen)
    assert all(torch.equal(view, one.flatten()) for view, one in zip(layout.views(vector), parameters, strict=True))
