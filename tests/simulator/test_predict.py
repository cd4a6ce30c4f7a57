from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.runs import describe
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_number
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.scaling import forget
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.validator.verdicts import in_bulk

Make = Callable[..., Scenario]
NAMES = catalog.names("what-if")
# which take several seconds: long intervals, and many asynchronous workers
LARGE = ("gpt3-175b-hybrid-selene", "llama3-405b-54-days", "wide-and-deep-servers-2016")
# these scenarios show configurations that are impractical
TOO_LARGE = {"gpt3-175b-hybrid-selene", "gpt3-175b-pipeline-selene", "gpt3-175b-ring-selene", "gpt3-175b-servers-selene"}


@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in LARGE), *in_bulk(*LARGE)])
def test_every_shipped_scenario_predicts_a_consistent_summary(name: str) -> None:
    summary = predict(load(name)).to_dict()
    assert summary["step_time_s"] > 0
    assert summary["samples_per_s"] == pytest.approx(summary["samples"] / summary["step_time_s"])
    assert set(summary["efficiency"]) == set(summary["baseline"]) == {"weak", "strong"}
    assert sum(summary["breakdown_s"].values()) == pytest.approx(summary["step_time_s"])
    assert summary["memory_bytes_per_rank"] == pytest.approx(sum(summary["memory_bytes"].values()))
    capacity = summary["capacity_bytes"]
    fullest = max(summary["memory_by_stage"], key=lambda one: one["total_bytes"] / (one.get("capacity_bytes") or capacity))
    assert summary["memory_bytes_per_rank"] == fullest["total_bytes"]
    assert summary["fits"] == (summary["memory_bytes_per_rank"] <= summary["capacity_bytes"]) == (name not in TOO_LARGE)
    assert 0 < summary["mfu"] <= summary["hfu"] < 1
    json.dumps(summary, allow_nan=False)


def test_the_baseline_is_the_smallest_configuration_that_fits(small: Make) -> None:
    pipeline = "strategy={kind: pipeline, stages: 6, microbatches: 6}"
    roomy = predict(small(pipeline))
    assert roomy.baseline is not None
    assert roomy.baseline["strong"].startswith("1 worker, 48 samples a step")
    # about 0.35 M parameters, eight bytes each: all six stages together in 3 MB, not in 1.5
    tight = predict(small(pipeline, "cluster.device.memory=1.5 MB"))
    assert tight.baseline is not None
    assert tight.baseline["strong"].startswith("1 worker of 2 stages, the smallest that fits, 48 samples")


@pytest.mark.parametrize(
    ("strategy", "share"),
    [
        ("{kind: pipeline, stages: 4, microbatches: 8}", 3 / 11),
        ("{kind: pipeline, stages: 2, chunks: 3, microbatches: 8, schedule: interleaved_1f1b}", 1 / 25),
        ("{kind: pipeline, stages: 4, microbatches: 8, schedule: zb_h1}", None),
        ("{kind: data_parallel, workers: 4}", None),
    ],
)
def test_the_bubble_of_equal_stages_is_given_next_to_the_predicted_one(small: Make, strategy: str, share: float | None) -> None:
    run = predict(small(f"strategy={strategy}"))
    assert run.textbook_bubble == (None if share is None else pytest.approx(share))
    assert ("if all stages were equal" in described(describe(run))) == (share is not None)


def test_the_smallest_baseline_reduces_tensor_parallel_ranks_then_stages(small: Make) -> None:
    """About 0.35 M parameters, eight bytes each."""
    strategy = "strategy={kind: hybrid, workers: 2, stages: 3, tensor: 4, sequence_parallel: true, microbatches: 6}"
    for memory_MB, named in (
        (8, "1 worker, "),
        (1.6, "1 worker of 2 tensor-parallel ranks, the smallest"),
        (0.5, "1 worker of 2 stages × 4 tensor-parallel ranks, the smallest"),
    ):
        baseline = predict(small(strategy, f"cluster.device.memory={memory_MB} MB")).baseline
        assert baseline is not None
        assert baseline["weak"].startswith(named)


def test_sharded_baselines_have_the_fewest_workers_that_fit(small: Make) -> None:
    tight = "cluster.device.memory=1 MB"
    alone, shared = (predict(small("strategy.workers=8", tight, f"training.zero={zero}")) for zero in (0, 3))
    assert alone.baseline is not None
    assert shared.baseline is not None
    assert alone.baseline["strong"].startswith("1 worker, which does not fit, 48 samples")
    assert shared.baseline["strong"].startswith("4 workers, the smallest that fits, 48 samples")
    assert shared.baseline["weak"].startswith("4 workers, the smallest that fits, 24 samples")


def test_efficiency_is_throughput_per_rank_relative_to_the_baseline(small: Make) -> None:
    """All samples of a step pass through one worker in microbatches of as many as each worker has."""
    alone = predict(small("strategy={kind: data_parallel, workers: 1, microbatches: 8}"))
    run = predict(small("strategy.workers=8"))
    assert run.efficiency is not None
    assert run.speed_up is not None
    assert run.efficiency["strong"] == pytest.approx(run.samples_per_s / 8 / alone.samples_per_s)
    assert run.speed_up["strong"] == pytest.approx(run.samples_per_s / alone.samples_per_s)
    weak = predict(small("strategy.workers=1", "batch=6"))
    assert run.efficiency["weak"] == pytest.approx(run.samples_per_s / 8 / weak.samples_per_s)


def test_a_baseline_has_itself_as_baseline(small: Make) -> None:
    run = predict(small("strategy.workers=1"))
    assert run.efficiency == run.speed_up == {"weak": 1, "strong": 1}


def test_baselines_are_not_reused_for_another_scenario(small: Make) -> None:
    """Baselines are cached between predictions, by everything that they depend on."""
    changes = ("cluster.device.peak.fp32=2 TFLOP/s", "training.optimizer=adam", "model.hidden=128", "input={decode: 10 ms}")
    first = [predict(small("strategy.workers=8", *more)).baseline for more in ((), *((change,) for change in changes))]
    forget()
    again = [predict(small("strategy.workers=8", *more)).baseline for more in ((), *((change,) for change in changes))]
    assert first == again
    assert len({str(baseline) for baseline in first}) == len(first)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_extrapolated_long_pipelines_equal_full_predictions(small: Make, schedule: str) -> None:
    """A baseline of many microbatches is extrapolated; the same pipeline predicted in full must agree."""
    numbers = f"stages: 4, microbatches: 64, schedule: {schedule}"
    memory = "cluster.device.memory=0.9 MB"
    many = predict(small(f"strategy={{kind: hybrid, workers: 2, {numbers}}}", "batch=128", memory))
    full = predict(small(f"strategy={{kind: hybrid, {numbers.replace('64', '128')}}}", "batch=128", memory))
    assert many.baseline is not None
    assert "1 worker of 4 stages" in many.baseline["strong"]
    assert f"{format_number(full.samples_per_s)} samples/s" in many.baseline["strong"]


def test_a_measured_step_replaces_the_compute_model_of_a_device(small: Callable[..., Scenario]) -> None:
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
    with pytest.raises(FieldError, match="is shorter than the optimizer's step alone"):
        predict(small("strategy.workers=1", "training.measured_step={samples: 48, time: 1 us}"))


def test_recomputation_adds_time_to_a_measured_step(small: Callable[..., Scenario]) -> None:
    measured = "training.measured_step={samples: 48, time: 120 ms}"
    plain, again = (
        predict(small("strategy.workers=1", "batch=48", measured, f"training.recompute={how}")) for how in ("none", "full")
    )
    # the blocks' forward passes, a third of their work, are made again
    assert 1.2 < again.step_time_s / plain.step_time_s < 1.34


@pytest.mark.parametrize("changes", [(), ("strategy={kind: parameter_server, workers: 2, servers: 1, mode: asynchronous}",)])
def test_more_steps_than_can_be_simulated_are_refused(small: Make, changes: tuple[str, ...]) -> None:
    with pytest.raises(FieldError, match=r"^steps: .* give at most \d+$"):
        predict(small(*changes, "unevenness.compute_jitter=0.1", "steps=1000000"))


def test_baselines_with_more_samples_per_rank_are_marked(small: Make) -> None:
    """One of four stages holds all; half a microbatch is rounded up to a whole one."""
    run = predict(small("strategy={kind: pipeline, stages: 4, microbatches: 1}"))
    assert run.baseline is not None
    assert "(4 times as many a rank as in the scenario)" in run.baseline["weak"]
    assert "times as many" not in run.baseline["strong"]


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({}, True),
        ({"framework": "pytorch-ddp-channels-last"}, False),
        ({"training.precision": "fp32"}, False),
        ({"cluster.device": "p100-sxm2", "training.precision": "fp16"}, False),
        ({"model": "bert-large"}, False),
    ],
)
def test_a_layout_of_images_that_costs_time_is_said(changes: dict[str, str], is_said: bool) -> None:
    fields = {
        "model": "resnet50",
        "cluster": "dgx-h100",
        "strategy": {"kind": "data_parallel", "workers": 8},
        "batch": {"per_worker": 32},
        "training": {"precision": "bf16"},
    }
    notes = predict(load(fields, changes), interval=False).notes
    assert any("channels_last" in note for note in notes) is is_said


@pytest.mark.parametrize(
    ("cluster", "gpus", "devices"),
    [
        ("workstation-2x4090", 1, 2),
        ("workstation-2x4090", 2, None),
        ("rtx-4090", 1, None),
        ("{base: dgx-h100, nodes: 2}", 1, 16),
    ],
)  # fmt: skip
def test_a_model_on_one_of_several_devices_says_so(cluster: str, gpus: int, devices: int | None) -> None:
    changes = [f"cluster={cluster}", "batch=2", f"gpus={gpus}", "model.sequence=128"]
    said = [note for note in predict(load("gpt2-small", changes), interval=False).notes if "is used; for all" in note]
    assert len(said) == (devices is not None)
    assert all(f"1 of the {devices} devices" in note and f"--set gpus={devices}" in note for note in said)
