"""Small models of images train like one process, and send the bytes that are predicted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import collectives, deviation, deviation_of, in_bulk

WORKERS = {"kind": "data_parallel", "workers": 2}
VIT, UNET = "vit", "unet"
SMALL_UNET = "unet(image=8, levels=1, depthwise=False)"


def model(called: str) -> dict[str, Any]:
    return {"kind": "traced", "source": f"python:scaleproof.validator.train.models.vision:{called}"}


@pytest.mark.parametrize("called", [VIT, UNET])
def test_workers_equal_one_process_and_send_the_predicted_bytes(called: str, make_scenario: MakeScenario) -> None:
    scenario = make_scenario(WORKERS, model(called), precision="fp64", batch=8, steps=3)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    predicted = sum(8 * layer.trained_parameters for layer in scenario.model.build_layers())
    assert collectives(run) == Counter([float(predicted)])


@pytest.mark.parametrize(
    ("strategy", "called", "training"),
    [
        (WORKERS, VIT, {"zero": 3}),
        *in_bulk(
            (WORKERS, UNET, {"zero": 3}),
            (WORKERS, VIT, {"zero": 2}),
            (WORKERS, UNET, {"zero": 1}),
            (WORKERS, UNET, {"recompute": "full"}),
            (WORKERS | {"workers": 4, "bucket": "16 KiB"}, SMALL_UNET, {}),
            ({"kind": "pipeline", "stages": 2, "microbatches": 2}, UNET, {}),
            ({"kind": "pipeline", "stages": 2, "microbatches": 2}, VIT, {}),
            ({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}, UNET, {}),
            ({"kind": "parameter_server", "workers": 2, "servers": 1}, UNET, {}),
        ),
    ],
)
def test_divided_models_equal_one_process(
    strategy: dict[str, Any], called: str, training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model(called), precision="fp64", batch=8, steps=3, **training)) < 1e-9


def towers(contrast: str, called: str = "clip") -> dict[str, Any]:
    return {**model(called), "contrast": contrast}


@pytest.mark.parametrize(
    ("strategy", "contrast", "called"),
    [
        (WORKERS, "gathered", "clip"),
        (WORKERS, "ring", "clip(biased=True)"),
        *in_bulk(
            (WORKERS | {"workers": 4, "bucket": "16 KiB"}, "gathered", "clip(layers=2)"),
            (WORKERS | {"workers": 4, "overlap": False}, "ring", "clip"),
            (WORKERS | {"microbatches": 2}, "local", "clip"),
            ({"kind": "parameter_server", "workers": 2, "servers": 1}, "gathered", "clip"),
            (WORKERS | {"workers": 1, "microbatches": 2}, "gathered", "clip"),
            (WORKERS | {"microbatches": 2}, "gathered", "clip"),
            (WORKERS | {"microbatches": 4, "overlap": False}, "ring", "clip(biased=True)"),
        ),
    ],
)
def test_towers_equal_one_process_and_exchange_the_predicted_features(
    strategy: dict[str, Any], contrast: str, called: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, towers(contrast, called), precision="fp64", batch=8, steps=3)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    if strategy["kind"] == "data_parallel" and strategy["workers"] == 2:
        dense = 8 * sum(layer.trained_parameters for layer in scenario.model.build_layers())
        assert collectives(run) == Counter([*exchanged_bytes(scenario), dense])


def exchanged_bytes(scenario: Scenario) -> list[float]:
    """Predicted bytes of the exchanges of features in a step: of each microbatch, in both passes."""
    plan, (*_, last) = scenario.strategy.plan, scenario.layers(scenario.strategy.plan.shard)
    # a ring of two sends each worker's features once to the other
    share = 0.5 if getattr(scenario.model, "contrast", None) == "ring" else 1.0
    samples = scenario.samples_per_worker / plan.microbatches
    return [share * 8 * samples * one.elements for one in last.exchanges] * plan.microbatches


@pytest.mark.parametrize(
    ("zero", "contrast", "called", "microbatches"),
    [
        (3, "gathered", "clip(biased=True)", 2),
        *in_bulk(
            (3, "ring", "clip(biased=True)", 1), (2, "gathered", "clip(layers=2)", 2), (1, "ring", "clip", 1),
            (3, "local", "clip", 2),
        ),
    ],
)  # fmt: skip
def test_sharded_towers_equal_one_process_and_exchange_the_predicted_features(
    zero: int, contrast: str, called: str, microbatches: int, make_scenario: MakeScenario
) -> None:
    strategy = WORKERS | {"microbatches": microbatches}
    scenario = make_scenario(strategy, towers(contrast, called), precision="fp64", batch=8, steps=3, zero=zero)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    found, features = collectives(run), Counter(exchanged_bytes(scenario))
    assert {size: found[size] for size in features} == features


@pytest.mark.parametrize(
    ("strategy", "others", "field"),
    [
        (WORKERS, {"recompute": "full"}, "training.recompute"),
        ({"kind": "pipeline", "stages": 2, "microbatches": 2}, {}, "strategy: pipeline"),
    ],
)
def test_losses_that_are_not_trained_are_refused(
    strategy: dict[str, Any], others: dict[str, Any], field: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=field):
        check_trainable(make_scenario(strategy, towers("gathered"), batch=8, **others))
