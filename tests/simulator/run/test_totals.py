"""Prices of nodes, and totals of a whole training run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import yaml

from scaleproof.commands.main import main
from scaleproof.simulator.common.errors import ScenarioError, UnitError
from scaleproof.simulator.common.units import parse_count
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.totals import TrainingTotals
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load

MEGATRON = "megatron-175b-3d-selene"
OWNED = (
    "cluster.node.purchase={price: 150 kUSD, years: 4}", "cluster.electricity={price: 0.1 USD/kWh, carbon: 50 g/kWh}",
    "cluster.pue=1.2",
)  # fmt: skip


def test_a_price_of_a_gpu_is_one_eighth_of_that_of_a_node_of_eight() -> None:
    by_gpu, by_node = (load(MEGATRON, {"cluster.node.price": price}) for price in ("2.5 USD/GPU-hour", "20 USD/h"))
    assert by_gpu.cluster == by_node.cluster
    assert "price: 20 USD/h" in dump(by_gpu)


def test_totals_are_tokens_over_throughput_times_price_and_power() -> None:
    scenario = load(MEGATRON, {"cluster.node.price": "2.5 USD/GPU-hour"})
    run = predict(scenario)
    assert run.tokens_per_s is not None
    totals = TrainingTotals.of_run(run, 300e9, scenario.cluster.electricity.carbon_kg_per_J)
    days = totals.time_s.value / 86400
    assert days == pytest.approx(300e9 / run.tokens_per_s / 86400, rel=1e-5)
    assert totals.gpu_hours.value == pytest.approx(512 * 24 * days)
    assert totals.cost_USD is not None
    assert totals.energy_J is not None
    assert totals.carbon_kg is not None
    assert totals.cost_USD.value == pytest.approx(2.5 * totals.gpu_hours.value)
    assert totals.energy_J.value == pytest.approx(64 * 6500 * totals.time_s.value)
    assert totals.carbon_kg.value == pytest.approx(0.48 * totals.energy_J.value / 3.6e6)
    assert run.prediction_interval_s is not None
    for estimate in (totals.time_s, totals.cost_USD, totals.energy_J, totals.carbon_kg):
        assert estimate.low / estimate.value == pytest.approx(run.prediction_interval_s[0] / run.step_time_s)


def test_an_owned_node_costs_depreciation_and_electricity() -> None:
    run = predict(scenario := load(MEGATRON, OWNED), interval=False)
    assert load(yaml.safe_load(dump(scenario))) == scenario
    per_hour = 150e3 / (4 * 365.25 * 24) + 1.2 * 6.5 * 0.1
    assert run.cost_USD is not None
    assert run.cost_USD["per_step"] == pytest.approx(64 * per_hour * run.step_time_s / 3600)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["cluster.node.price=2.5 EUR/h"], "cluster.node.price: EUR: prices are in US dollars; convert it"),
        (["cluster.node.price=2.5 EUR/GPU-hour"], "write a price of a GPU such as '2.50 USD/GPU-hour'"),
        (OWNED[:1], "cluster.electricity.price: missing for nodes that are owned"),
        (["cluster.node={price: 1 USD/h, purchase: {price: 1 USD, years: 1}}"], "is rented .price. or owned"),
    ],
)
def test_prices_that_do_not_suit_are_refused(overrides: Sequence[str], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        load(MEGATRON, list(overrides))


@pytest.mark.parametrize(("text", "number"), [("15T", 15e12), ("300B", 300e9), ("1.5e12", 1.5e12), ("1,000", 1e3)])
def test_numbers_of_tokens_are_read(text: str, number: float) -> None:
    assert parse_count(text) == number
    with pytest.raises(UnitError, match="write it like 15T"):
        parse_count(f"-{text}")


def test_commands_print_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", MEGATRON, "--tokens", "300B", "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert training["cost_USD"] is None
    assert training["time_s"]["low"] < training["time_s"]["value"] < training["time_s"]["high"]
    assert main(["predict", MEGATRON, "--tokens", "300B"]) == 0
    output = capsys.readouterr().out
    assert "300 B tokens, 572,205 steps: " in output
    assert "cost not known; set cluster.node.price" in output
    assert main(["predict", "resnet50-ring-p100", "--tokens", "1B"]) == 2
    assert "the model reads no tokens" in capsys.readouterr().err
