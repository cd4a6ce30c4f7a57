from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator import library
from simulator.errors import FieldError
from simulator.predict import predict
from simulator.scenario import Scenario, load

Make = Callable[..., Scenario]


@pytest.mark.parametrize("name", library.names("what-if"))
def test_every_shipped_question_has_an_answer(name: str) -> None:
    summary = predict(load(name)).summary()
    assert summary["step_time_s"] > 0
    assert summary["samples_per_s"] == pytest.approx(summary["samples"] / summary["step_time_s"])
    assert set(summary["efficiency"]) == set(summary["baseline"]) == {"weak", "strong"}
    assert sum(summary["breakdown_s"].values()) == pytest.approx(summary["step_time_s"])
    assert summary["memory_bytes_per_rank"] == pytest.approx(sum(summary["memory_bytes"].values()))


def test_what_ships_covers_every_family_with_both_models() -> None:
    scenarios = [load(name) for name in library.names("what-if")]
    pairs = {(s.strategy.kind, s.model.name) for s in scenarios}
    families = ("parameter_server", "data_parallel", "pipeline", "hybrid")
    assert pairs >= {(family, model) for family in families for model in ("resnet50", "gpt3-175b")}


def test_the_baseline_is_the_smallest_that_holds_the_model(small: Make) -> None:
    pipeline = "strategy={kind: pipeline, stages: 6, microbatches: 6}"
    roomy = predict(small(pipeline))
    assert roomy.baseline is not None
    assert roomy.baseline["strong"].startswith("1 worker, 48 samples a step")
    # about 0.35 M parameters, eight bytes each: all six stages together in 3 MB, not in 1.5
    tight = predict(small(pipeline, "cluster.device.memory=1.5 MB"))
    assert tight.baseline is not None
    assert tight.baseline["strong"].startswith("1 worker of 2 stages, the fewest that hold the model, 48 samples")


def test_efficiency_is_throughput_per_rank_against_the_baseline(small: Make) -> None:
    scenario = small("strategy.workers=8")
    alone = predict(small("strategy.workers=1"))
    run = predict(scenario)
    assert run.efficiency is not None
    assert run.efficiency["strong"] == pytest.approx(run.samples_per_s / 8 / alone.samples_per_s)
    weak = predict(small("strategy.workers=1", "batch=6"))
    assert run.efficiency["weak"] == pytest.approx(run.samples_per_s / 8 / weak.samples_per_s)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_long_pipeline_is_told_from_two_shorter_ones(small: Make, schedule: str) -> None:
    """A baseline of many microbatches is extrapolated; the same pipeline predicted in full must agree."""
    numbers = f"stages: 4, microbatches: 64, schedule: {schedule}"
    memory = "cluster.device.memory=0.9 MB"
    many = predict(small(f"strategy={{kind: hybrid, workers: 2, {numbers}}}", "batch=128", memory))
    full = predict(small(f"strategy={{kind: pipeline, {numbers.replace('64', '128')}}}", "batch=128", memory))
    assert many.baseline is not None
    assert "1 worker of 4 stages" in many.baseline["strong"]
    assert f"{full.samples_per_s:.4g} samples/s" in many.baseline["strong"]


def test_the_same_scenario_gives_the_same_run(small: Make) -> None:
    scenario = small("strategy={kind: hybrid, workers: 2, stages: 3, microbatches: 6}")
    assert predict(scenario).summary() == predict(scenario).summary()


def test_a_measured_step_of_one_device_stands_in_place_of_a_model_of_it(small: Callable[..., Scenario]) -> None:
    """Alone the step takes what was measured; the strategies take their shares of it."""
    measured = "training.measured_step={samples: 48, time: 120 ms}"
    alone = predict(small("strategy.workers=1", "batch=48", measured))
    assert alone.step_time_s == pytest.approx(0.12, rel=1e-9)
    two, modelled = (
        predict(small("strategy={kind: pipeline, stages: 2, microbatches: 4}", *more)) for more in ((measured,), ())
    )
    # each half of the layers, three of four microbatches of it hidden behind the other half
    assert two.breakdown_s["compute"] == pytest.approx(0.06, rel=0.02)
    assert two.step_time_s > modelled.step_time_s


def test_a_measured_step_shorter_than_its_optimizer_is_refused(small: Callable[..., Scenario]) -> None:
    with pytest.raises(FieldError, match="optimizer alone takes longer"):
        predict(small("strategy.workers=1", "training.measured_step={samples: 48, time: 1 us}"))


def test_recomputation_takes_time_beside_a_measured_step_as_well(small: Callable[..., Scenario]) -> None:
    measured = "training.measured_step={samples: 48, time: 120 ms}"
    plain, again = (
        predict(small("strategy.workers=1", "batch=48", measured, f"training.recompute={how}")) for how in ("none", "full")
    )
    # the blocks' forward passes, a third of their work, are made again
    assert 1.2 < again.step_time_s / plain.step_time_s < 1.34


def test_another_base_is_another_device() -> None:
    times = [predict(load("resnet50-ring-p100", [f"cluster.device.base={name}"])).step_time_s for name in ("p100-pcie", "k80")]
    assert times[1] > 1.5 * times[0]
