"""Comparison of two scenarios: changes, effects by part, and whether they exceed the uncertainty."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

import scaleproof
from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions import comparisons
from scaleproof.simulator.analysis.compare import Comparison, compare
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import BREAKDOWN
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]


def describe(found: Comparison) -> str:
    return described(comparisons.describe(found))


CHANGES = (
    ("cluster.network.bandwidth=1 Gbit/s", "strategy.workers=8"),
    ("strategy={kind: parameter_server, workers: 8, servers: 2}",),
    ("strategy={kind: pipeline, stages: 6, microbatches: 6}",),
    ("strategy={kind: parameter_server, workers: 4, servers: 2, mode: asynchronous}",),
)


def test_identical_scenarios_are_indistinguishable(small: Make) -> None:
    found = compare(small(), small())
    assert found.changed == ()
    assert found.ratio == 1
    assert all(effect.change in (0, None) for effect in found.effects)
    assert all((part.change_s, part.low_s, part.high_s) == (0, 0, 0) for part in found.parts)
    assert (found.speedup.ahead, found.speedup.is_distinguishable) == (0.5, False)
    text = describe(found)
    assert "nothing changed" in text
    assert "B is as fast as A" in text
    assert text.endswith("; A and B are a tie")


def test_a_changed_framework_is_listed_as_one_change(small: Make) -> None:
    found = compare(small(), small("framework=torchtitan"))
    changed = {one.field: (one.a, one.b) for one in found.changed}
    assert changed["framework"] == ("pytorch-ddp", "torchtitan")
    assert not any(field.startswith("framework.") for field in changed)
    assert found.to_dict()["frameworks"] == {
        "a": {"framework": "pytorch-ddp", "framework_is_default": True},
        "b": {"framework": "torchtitan", "framework_is_default": False},
    }
    first, second = describe(found).splitlines()[:2]
    assert first.endswith("framework: pytorch-ddp, by default")
    assert second.endswith("framework: torchtitan")
    assert found.to_frame()["framework"].tolist() == ["pytorch-ddp", "torchtitan"]


@pytest.mark.parametrize("change", CHANGES)
def test_differences_of_parts_add_up_to_the_difference_of_steps(small: Make, change: tuple[str, ...]) -> None:
    found = compare(small(), small(*change))
    *parts, whole = found.parts
    assert [part.name for part in parts] == list(BREAKDOWN)
    for side in ("a_s", "b_s", "change_s"):
        assert sum(getattr(part, side) for part in parts) == pytest.approx(getattr(whole, side), rel=1e-9)
    assert (whole.a_s, whole.b_s) == (found.a.step_time_s, found.b.step_time_s)
    assert all(part.low_s <= part.high_s for part in found.parts)
    assert whole.low_s < whole.change_s < whole.high_s


@pytest.mark.parametrize("change", CHANGES)
def test_effects_equal_the_difference_of_both_predictions(small: Make, change: tuple[str, ...]) -> None:
    a, b = small(), small(*change)
    found = compare(a, b)
    result = {effect.name: effect for effect in found.effects}
    for run, alone in zip((found.a, found.b), (predict(a), predict(b)), strict=True):
        # as predicted, but that what brings little of the interval is not left out
        assert run.prediction_interval_s == pytest.approx(alone.prediction_interval_s, rel=0.01)
        assert run.step_quantiles_s == pytest.approx(alone.step_quantiles_s, rel=1e-3)
        intervals = {"prediction_interval_s": alone.prediction_interval_s, "spread": alone.spread}
        same = replace(run, **intervals, step_distribution=alone.step_distribution)
        assert same.to_dict() == alone.to_dict()
    assert result["step time"].change == pytest.approx(found.b.step_time_s / found.a.step_time_s - 1)
    assert result["throughput"].change == pytest.approx(found.ratio - 1)
    for effect in found.effects:
        if effect.low is not None and effect.high is not None and effect.change is not None:
            assert effect.low <= effect.change <= effect.high
    assert result["memory of a rank"].b == found.b.memory_bytes_per_rank


def test_scaling_efficiencies_have_one_baseline(small: Make) -> None:
    """Fully sharded on as many ranks as it needs, a run is its own baseline; next to a run that scales from one rank it is not,
    so that less throughput on equal GPUs is less efficiency."""
    tight = "cluster.device.memory=1.2 MB"
    whole, sharded = small(tight), small(tight, "training.zero=3", "cluster.node.link.bandwidth=1 Gbit/s")
    assert predict(sharded).efficiency == {"weak": 1.0, "strong": 1.0}
    found = compare(whole, sharded)
    assert found.baseline == "1 worker"
    changes = {effect.name: effect.change or 0.0 for effect in found.effects}
    assert changes["throughput"] < -0.1
    for name in ("weak scaling efficiency", "strong scaling efficiency"):
        assert changes[name] == pytest.approx(changes["throughput"], abs=0.1)
    assert "scaling efficiencies of both are relative to 1 worker" in describe(found)


def test_swapping_scenarios_inverts_the_effects(small: Make) -> None:
    a, b = small(), small("cluster.network.bandwidth=1 Gbit/s")
    forth, back = compare(a, b), compare(b, a)
    assert forth.ratio == pytest.approx(1 / back.ratio)
    assert forth.speedup.low == pytest.approx(1 / back.speedup.high, rel=0.02)
    assert forth.speedup.ahead == pytest.approx(1 - back.speedup.ahead, abs=0.03)


def test_device_error_does_not_affect_a_speedup_on_the_same_device(small: Make) -> None:
    """Twice the samples on the same device, where nothing but compute takes time: as fast, however fast the device is."""
    a = small(*ONLY_COMPUTE)
    found = compare(a, small(*ONLY_COMPUTE, "batch=96"))
    low_s, high_s = found.a.prediction_interval_s or (0.0, 0.0)
    assert high_s / low_s > 1.3
    assert found.speedup.high / found.speedup.low < 1.001


def test_cost_and_energy_change_inversely_to_throughput(small: Make) -> None:
    priced = ("cluster.node.price=4 USD/h", "cluster.node.power=2 kW")
    found = compare(small(*priced), small(*priced, "cluster.network.bandwidth=1 Gbit/s"))
    result = {effect.name: effect for effect in found.effects}
    for name in ("cost of a million samples", "cost of a million tokens"):
        assert result[name].change == pytest.approx(1 / found.ratio - 1)
        assert result[name].high == pytest.approx(1 / found.speedup.low - 1)


def test_the_cheaper_scenario_has_a_probability_of_its_own(small: Make) -> None:
    """B is faster at twenty times the price, so that A is cheaper; both ratios have the same errors."""
    slow = small("strategy.workers=8", "cluster.node.price=1 USD/h", "cluster.network.bandwidth=1 Gbit/s")
    found = compare(slow, small("strategy.workers=8", "cluster.node.price=20 USD/h"))
    assert found.per_dollar is not None
    assert found.cost_ratio == pytest.approx(20 / found.ratio)
    assert (found.speedup.ahead > 0.9, found.per_dollar.ahead < 0.1) == (True, True)
    assert found.per_dollar.high == pytest.approx(found.speedup.high / 20)
    text = " ".join(describe(found).split())
    assert "; B is faster than A with a probability of " in text
    assert f"B costs {found.cost_ratio:.3g} times what A costs per token (90 % interval " in text
    assert "); A is cheaper than B with a probability of " in text
    assert found.to_dict()["probability_b_cheaper"] == found.per_dollar.ahead


def test_a_model_that_does_not_fit_is_reported_with_a_remedy(small: Make) -> None:
    text = describe(compare(small(), small("model.layers=48", "model.hidden=1024", "cluster.device.memory=6 GiB")))
    assert text.startswith("B: Out of memory: ")
    assert "fits with: --set " in " ".join(text.split())


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "ring-2", "ring-2", "--set-b", "strategy.overlap=false", "--set", "steps=4"]
    assert scaleproof.main(arguments) == 0
    assert "strategy.overlap" in capsys.readouterr().out
    assert scaleproof.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] == [{"field": "strategy.overlap", "a": "true", "b": "false"}]
    assert sum(part["change_s"] for part in result["parts"][:-1]) == pytest.approx(result["parts"][-1]["change_s"])
    assert 0 <= result["probability_b_faster"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring-2", "ring-22"], "no scenario is called 'ring-22'"),
        (["ring-2", "ring-2", "--set-b", "strategy.worker=2"], "strategy.worker: unknown key; did you mean 'workers'?"),
        (["ring-2", "ring-2", "--set-a", "strategy"], "--set strategy: expected field=value"),
        (["ring-2", "ring-2", "--set", "strategy.workers=5"], "5 workers do not divide 24 samples"),
    ],
)
def test_bad_input_gives_a_one_line_error(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["compare", *arguments]) == 2
    result = capsys.readouterr()
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""
