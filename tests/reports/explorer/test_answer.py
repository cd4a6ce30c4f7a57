"""The response to a request of the page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import scaleproof
from scaleproof.reports.explorer.answer import answer, as_yaml
from scaleproof.reports.explorer.question import Question
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

RING = "resnet50-ring-p100"


def response(reference: str, *sets: str, first: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(Question(reference, sets, first)))
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
    assert [one["key"] for one in found["numbers"]] == ["throughput", "step", "mfu", "efficiency"]
    assert all(one["detail"] for one in found["numbers"])


def test_a_first_estimate_has_the_same_step_time_without_interval_and_controls() -> None:
    full, first = response(RING), response(RING, first=True)
    assert first["exact"]
    assert first["step_time_s"] == full["step_time_s"]
    assert "controls" not in first
    assert first["numbers"][0]["detail"] is None


def test_a_first_estimate_of_a_large_scenario_is_close() -> None:
    sets = ("cluster.network.bandwidth=400 Gbit/s", "strategy.microbatches=16")
    first = response("megatron-175b-3d-selene", *sets, first=True)
    run = predict(load("megatron-175b-3d-selene", sets), interval=False)
    assert not first["exact"]
    assert first["step_time_s"] == pytest.approx(run.step_time_s, rel=0.03)


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


def test_exported_yaml_names_unchanged_shipped_parts_and_writes_out_others() -> None:
    plain = yaml.safe_load(as_yaml(Question(RING, ("cluster.network.latency=5 us",))))
    assert plain["model"] == "resnet50"
    assert plain["cluster"]["network"]["latency"] == "5 us"
    assert plain["cluster"]["device"] == "p100-pcie"


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
    assert problem["remedies"] == ([remedy] if remedy else [])
    # the controls are those of the valid scenario
    by_field = {one["field"]: one for group in found["controls"] for one in group["controls"]}
    assert by_field["training.optimizer"]["value"] == "adam"
    if remedy:
        assert "error" not in response(RING, "training.optimizer=adam", override, remedy)


def test_scenarios_that_do_not_fit_come_with_a_remedy() -> None:
    found = response("llama-2-7b-fsdp-a100", "training.zero=0", "training.recompute=none")
    assert found["memory"]["fits"] is False
    assert "if only its memory sufficed" in found["headline"]
    sets = ("training.zero=0", "training.recompute=none", *found["memory"]["fit_by"])
    assert response("llama-2-7b-fsdp-a100", *sets, first=True)["memory"]["fits"]


def test_all_values_in_an_answer_are_texts_or_finite_numbers() -> None:
    found = response(RING, "name=<script>alert(1)</script>".replace("/", ""), "model.name=<img src=x>", first=True)
    assert found["name"] == "<script>alert(1)<script>"
    assert "<img src=x>" in found["headline"]


def test_no_request_gives_a_traceback() -> None:
    for override in (
        "cluster.network.bandwidth=1e-300 bit/s",
        "batch=1000000000",
        "steps=1000000",
        "unevenness.compute_jitter=9",
    ):
        found = response(RING, override, first=True)
        assert "error" in found or found["headline"]
