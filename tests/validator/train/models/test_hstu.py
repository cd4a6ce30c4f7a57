"""Recommenders of sequences that train for real: predicted tensors and exchanges, and the parameters of one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Hstu
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.models import models
from scaleproof.validator.train.models.hstu import HstuBlock, PointwiseAttention, RelativeBias
from scaleproof.validator.train.samples import arrays
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import collectives, deviation, deviation_of, in_bulk

_TABLES: list[dict[str, Any]] = [{"rows": 40, "dim": 8}, {"rows": 12, "dim": 8, "pooling": 2}]
_SUMS: dict[str, Any] = {
    "kind": "hstu", "tables": _TABLES, "layers": 2, "hidden": 8, "heads": 2, "width": 4, "value_width": 2, "sequence": 6,
    "time_buckets": 16, "top": [5, 3],
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "sums": _SUMS,
    "turns": _SUMS | {"interleaved": True, "top": [3]},
    "no times": _SUMS | {"time_buckets": 0, "positions": 9},
}
_PADDED = {"distribution": "uniform", "mean": 4}
_PACKED = {"distribution": "uniform", "mean": 3, "batches": "packed"}


@pytest.mark.parametrize("name", MODELS)
def test_modules_have_the_tensors_and_outputs_of_the_predicted_layers(name: str) -> None:
    model = Hstu.model_validate(MODELS[name])
    layers = model.build_layers()
    modules = models.build(model, range(len(layers)), seed=0)
    assert [tuple(one.numel() for one in module.parameters()) for module in modules] == [one.tensors for one in layers]
    (rows, *times), targets = arrays(model, 5, np.random.default_rng(0))
    outputs = [modules[0](torch.tensor(rows))]
    for number, module in enumerate(modules[1:], start=1):
        outputs.append(module(outputs[-1], *map(torch.tensor, times if number <= model.layers else ())))
    assert [output.numel() for output in outputs] == [5 * one.output_elements for one in layers]
    assert outputs[-1].shape == targets.shape


def test_attention_weighs_values_by_silu_of_biased_scores() -> None:
    model = Hstu.model_validate(_SUMS)
    bias = RelativeBias(model)
    query, key, value = (torch.randn(1, 2, 6, width) for width in (4, 4, 2))
    times = torch.tensor([[0, 3600, 7200, 7201, 90_000, 10**6]])
    mixed = PointwiseAttention(bias, 6)(query, key, value, times[:, None, :, None])
    expected = torch.zeros(2)
    for token in range(4):
        bucket = min(16, int(np.log(max(1, int(times[0, 3] - times[0, token]))) / 0.301))
        assert bias.time is not None
        score = query[0, 1, 3] @ key[0, 1, token] + bias.position[token - 3 + 5] + bias.time[bucket]
        expected = expected + functional.silu(score) / 6 * value[0, 1, token]
    torch.testing.assert_close(mixed[0, 1, 3], expected)


def test_outputs_depend_on_earlier_tokens_of_the_same_user_alone() -> None:
    block, x = HstuBlock(Hstu.model_validate(_SUMS)), torch.randn(1, 6, 8)
    times = torch.arange(0, 6000, 1000)[None]
    changed = x.clone()
    changed[:, 2] += torch.randn(8)
    before, after = block(x, times), block(changed, times)
    torch.testing.assert_close(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 5], after[:, 5])
    users = torch.tensor([[0, 0, 0, 1, 1, 1]])
    torch.testing.assert_close(block(x, times, users)[:, 3:], block(changed, times, users)[:, 3:])


WORKERS = {"kind": "data_parallel", "workers": 2}


@pytest.mark.parametrize(
    ("strategy", "name", "others"),
    [
        (WORKERS, "sums", {"batch": 8, "lengths": _PACKED}),
        *in_bulk(
            (WORKERS, "turns", {}),
            (WORKERS, "no times", {"zero": 3}),
            (WORKERS | {"microbatches": 2}, "sums", {"batch": 8, "lengths": _PADDED}),
            (WORKERS, "sums", {"recompute": "full"}),
            ({"kind": "pipeline", "stages": 2, "microbatches": 2}, "turns", {}),
            ({"kind": "parameter_server", "workers": 2, "servers": 1}, "sums", {}),
            ({"kind": "parameter_server", "workers": 2, "servers": 2, "shard": "tensor", "sparse": {"rows": 0.5}}, "turns",
             {"optimizer": "sgd"}),
        ),
    ],
)  # fmt: skip
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], name: str, others: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, MODELS[name], precision="fp64", **others)) < 1e-9


@pytest.mark.parametrize(
    ("shard", "name", "workers"),
    [
        ("table", "sums", 2),
        ("row", "turns", 2),
        *in_bulk(("column", "turns", 2), ("row", "sums", 3), ("row", "no times", 4), ("table", "turns", 4)),
    ],
)
def test_divided_tables_equal_those_of_one_process(shard: str, name: str, workers: int, make_scenario: MakeScenario) -> None:
    optimizer = "rowwise_adagrad" if shard == "row" else "sgd"
    strategy = {**WORKERS, "workers": workers, "tables": {"shard": shard, "optimizer": optimizer}}
    scenario = make_scenario(strategy, MODELS[name], precision="fp64", optimizer="sgd", learning_rate=0.5, batch=4 * workers)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    layers = scenario.layers(scenario.strategy.plan.shard)
    samples, found = scenario.samples_per_worker, collectives(run)
    exchanged = [samples * one.elements * (one.element_bytes or 8) for one in layers[0].exchanges]
    dense = 8 * sum(layer.trained_parameters for layer in layers)
    assert dense in found
    if shard == "column":
        assert found == Counter([*exchanged, dense])
    if shard == "row" and workers != 3:
        # the numbers and the gradients of looked-up rows; what owners send of a range depends on the rows
        assert {exchanged[0], exchanged[2]} <= set(found)


def test_lengths_that_end_in_a_turn_are_refused(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(WORKERS, MODELS["turns"], batch=8, lengths=_PADDED)
    with pytest.raises(InputError, match="interleaved"):
        check_trainable(scenario)
