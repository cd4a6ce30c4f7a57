"""The response to a request of the page."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.reports.explorer.question import Look, Question
from scaleproof.reports.explorer.responses.answer import _memory_remedies, answer, as_yaml
from scaleproof.reports.explorer.worker import unreported
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.bottleneck import limit
from scaleproof.simulator.scenario.load import load

RING, SERVERS = "resnet50-ring-p100", "resnet50-servers-p100"


def response(
    reference: str, *sets: str, first: bool = False, look: Look = "full", gpus: int | None = None, a: Question | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(Question(reference, sets, "first" if first else look, gpus, a), unreported))
    return found


def test_a_full_answer_equals_predict() -> None:
    run = predict(load(RING, ["strategy.workers=8"]))
    found = response(RING, "strategy.workers=8")
    assert found["exact"]
    assert found["step_time_s"] == run.step_time_s
    assert found["samples_per_s"] == run.samples_per_s
    assert sum(part["share"] for part in found["breakdown"]) == pytest.approx(1, abs=0.02)
    memory = found["memory"]
    assert memory["fits"]
    assert sum(one["bytes"] for one in memory["holders"]) == pytest.approx(memory["total_bytes"], rel=0.02)
    assert [one["key"] for one in found["numbers"]] == ["throughput", "step", "gpu", "mfu", "cost"]
    assert all(one["detail"] for one in found["numbers"])


@pytest.mark.parametrize(
    ("sets", "bound"),
    [
        ((), "Compute-bound: "),
        (("input={decode: 500 ms}",), "Input-bound: faster decoding, or more cores for it, helps most."),
        (("cluster.network.bandwidth=1 Gbit/s",), "Network-bound: "),
    ],
)
def test_what_limits_a_run_is_what_predict_prints(sets: tuple[str, ...], bound: str) -> None:
    found = response(RING, *sets)["bottleneck"]
    assert bound in found
    assert found == " ".join(limit(predict(load(RING, sets))))


def test_a_number_of_gpus_keeps_the_batch_and_is_resolved_to_settings() -> None:
    found = response("megatron-175b-3d-selene", first=True, gpus=1024)
    assert found["gpus"] == 1024
    assert found["sets"] == ["strategy.workers=16", "strategy.microbatches=16", "batch.total=256"]
    again = response("megatron-175b-3d-selene", *found["sets"], first=True)
    assert again["step_time_s"] == found["step_time_s"]
    assert found["query"] == Question("megatron-175b-3d-selene", tuple(found["sets"])).query()


def test_gpus_that_cannot_be_divided_come_with_a_reason_and_offers() -> None:
    problem = response("megatron-175b-3d-selene", first=True, gpus=100)["error"]
    assert problem["field"] == "gpus"
    assert "not a multiple of the 64 GPUs of a worker" in problem["message"]
    assert [(one.get("gpus"), one.get("plan")) for one in problem["remedies"]] == [(64, None), (128, None), (None, 100)]


def test_curves_pass_through_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a busy machine, fewer points are computed in time
    monkeypatch.setattr("scaleproof.reports.explorer.responses.curves._LONGEST_S", 60.0)
    monkeypatch.setattr("scaleproof.reports.explorer.responses.curves._SLOW_S", 60.0)
    found = response("llama-2-7b-fsdp-a100", look="curves")
    rate = predict(load("llama-2-7b-fsdp-a100"), interval=False).tokens_per_s
    points = {point["gpus"]: point for point in found["scaling"]["points"]}
    assert points[64]["rate"] == pytest.approx(rate)
    assert points[64]["low"] < points[64]["rate"] < points[64]["high"]
    assert list(points) == sorted(points)
    # 128 samples cannot be divided among more GPUs
    assert {one["gpus"] for one in found["scaling"]["refused"]} == {256, 512, 1024}
    for link in found["links"]:
        rates = [point["rate"] for point in link["points"]]
        assert rates == sorted(rates)
        assert next(point["rate"] for point in link["points"] if point["factor"] == 1) == pytest.approx(rate)


def test_a_pinned_scenario_is_compared_with_an_interval_and_ties_are_named() -> None:
    tied = response(RING, "strategy.bucket=26 MiB", look="comparison", a=Question(RING))
    assert tied["tie"]
    assert "A and B are a tie" in tied["words"]
    # a part of the step is a bit longer for sure
    near = response(RING, "cluster.network.latency=60 us", look="comparison", a=Question(RING))
    assert not near["tie"]
    assert "; A is faster than B with a probability of " in near["words"]
    slower = response(RING, "cluster.network.bandwidth=1 Gbit/s", look="comparison", a=Question(RING))
    assert not slower["tie"]
    assert slower["ratio"] < 0.5
    assert slower["changed"] == [{"field": "cluster.network.bandwidth", "a": "25.0 Gbit/s", "b": "1.00 Gbit/s"}]
    assert [effect["name"] for effect in slower["effects"]][:2] == ["Step time", "Samples per second"]
    assert slower["effects"][0]["a"].endswith(" ms")


def test_a_comparison_says_which_scenario_does_not_fit() -> None:
    a = Question("llama-2-7b-fsdp-a100")
    words = response(a.reference, "training.zero=0", "training.recompute=none", look="comparison", a=a)["words"]
    assert "B is " in words
    assert words.endswith(" B needs more memory than a GPU has.")


@pytest.mark.full
def test_the_best_plan_can_be_applied_and_is_as_fast_as_it_says() -> None:
    progress: list[str] = []
    question = Question("llama-2-7b-fsdp-a100", look="plan")
    found = json.loads(answer(question, progress.append))
    assert progress[0].startswith("estimating")
    best = found["plans"][0]
    assert best["tie"]
    assert len(found["plans"]) <= 5
    for plan in found["plans"]:
        applied = response("llama-2-7b-fsdp-a100", *plan["sets"], first=True)
        assert applied["numbers"][0]["value"] == plan["rate"]
        assert applied["gpus"] == 64


def test_a_price_per_gpu_hour_gives_the_cost_of_tokens() -> None:
    numbers = response("llama-2-7b-fsdp-a100", "cluster.node.price=16 USD/h")["numbers"]
    cost = next(one for one in numbers if one["key"] == "cost")
    tokens_per_s = predict(load("llama-2-7b-fsdp-a100"), interval=False).tokens_per_s
    assert tokens_per_s is not None
    assert float(cost["value"]) == pytest.approx(64 * 2 / 3600 / tokens_per_s * 1e6, rel=0.01)
    assert (cost["detail"], cost["help"]) == ("128 USD per hour", "per million tokens")


def test_a_first_estimate_has_the_same_step_time_without_interval_and_controls() -> None:
    full, first = response(RING), response(RING, first=True)
    assert first["exact"]
    assert first["step_time_s"] == full["step_time_s"]
    assert "controls" not in first
    assert first["numbers"][0]["detail"] is None


def test_the_printed_command_gives_the_same_prediction_in_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    found = response(RING, "cluster.network.bandwidth=100 Gbit/s", "name=it's $HOME")
    words = shlex.split(found["command"])
    assert words[0] == "scaleproof"
    assert scaleproof.main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == found["step_time_s"]


@pytest.mark.parametrize(
    ("reference", "sets"),
    [
        (RING, ("cluster.network.bandwidth=100 Gbit/s", "strategy.workers=16")),
        ("resnet50-async-straggler-p100", ("strategy={kind: data_parallel, workers: 8}", "model=vgg16")),
        ("gpt3-1.3b-diloco-wan", ("cluster=dgx-h100", "training.recompute={group: 2}", "name=it's <b>")),
    ],
)
def test_exported_yaml_predicts_the_same(reference: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "exported.yaml"
    path.write_text(as_yaml(Question(reference, sets)), encoding="utf-8")
    again = predict(load(path), interval=False)
    assert again.step_time_s == predict(load(reference, sets), interval=False).step_time_s


@pytest.mark.parametrize(
    ("override", "field", "remedy"),
    [
        ("strategy.workers=100", "strategy", "cluster.nodes=25"),
        ("batch=100", "batch", "batch.total=96"),
        ("strategy.microbatches=7", "strategy.microbatches", "strategy.microbatches=8"),
        ("cluster.network.bandwidth=25", "cluster.network.bandwidth", None),
        ("strategy.wrokers=4", "strategy.wrokers", None),
        ("strategy.workers.deep=4", "strategy.workers.deep", None),
        ("training.precision=bf16", "training.precision", None),
    ],
)
def test_errors_name_the_field_and_a_remedy(override: str, field: str, remedy: str | None) -> None:
    found = response(RING, "training.optimizer=adam", override)
    problem = found["error"]
    assert problem["field"] == field
    assert "--set" not in problem["message"]
    assert ".yaml" not in problem["message"]
    assert problem["remedies"] == ([{"label": f"Set {remedy}", "sets": [remedy]}] if remedy else [])
    # the controls are those of the valid scenario
    by_field = {one["field"]: one for group in found["controls"] for one in group["controls"]}
    assert by_field["training.optimizer"]["value"] == "adam"
    if remedy:
        assert "error" not in response(RING, "training.optimizer=adam", override, remedy)


def test_scenarios_that_do_not_fit_come_with_a_remedy() -> None:
    found = response("llama-2-7b-fsdp-a100", "training.zero=0", "training.recompute=none")
    assert found["memory"]["fits"] is False
    assert found["headline"].startswith("Out of memory: ")
    assert found["numbers"][0]["label"] == "If memory sufficed"
    sets = ("training.zero=0", "training.recompute=none", *found["remedies"][0]["sets"])
    assert response("llama-2-7b-fsdp-a100", *sets, first=True)["memory"]["fits"]


def test_more_gpus_are_offered_only_where_the_model_then_fits() -> None:
    # replicas are as large on any number of GPUs
    found = response("gpt3-175b-servers-selene")
    assert found["memory"]["fits"] is False
    assert not any("gpus" in one for one in found["remedies"])
    sharded = response("llama-2-7b-fsdp-a100", "strategy.workers=2", "batch.total=128")
    (gpus,) = (one["gpus"] for one in sharded["remedies"] if "gpus" in one)
    assert response("llama-2-7b-fsdp-a100", "strategy.workers=2", "batch.total=128", gpus=gpus, first=True)["memory"]["fits"]


def test_a_remedy_that_needs_more_gpus_gives_their_number() -> None:
    scenario = load("llama-2-7b-fsdp-a100")
    run = replace(predict(scenario), fits=False)
    label = _memory_remedies(replace(run, fit_by="strategy.tensor=2 training.zero=3"), scenario)[0]["label"]
    assert label == "Set strategy.tensor=2, training.zero=3 (on 128 GPUs)"
    assert _memory_remedies(replace(run, fit_by="training.zero=3"), scenario)[0]["label"] == "Set training.zero=3"
