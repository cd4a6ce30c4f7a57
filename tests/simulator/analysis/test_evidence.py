"""Evidence: the published runs next to a prediction are those that resemble its scenario."""

from __future__ import annotations

import json
import re

import pytest

import scaleproof
from scaleproof.simulator.analysis.evidence import Evidence, PublishedRun, evidence, published_runs
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

RUN = next(run for run in published_runs() if run.framework == "llm-foundry").model_copy(
    update={"tensor": 1, "stages": 1, "zero": 3, "precision": "bf16"}
    | {"predicted_s": 1.1, "measured_s": 1.0, "low_s": 0.95, "high_s": 1.3}
)


@pytest.mark.parametrize("run", [published_runs()[0], published_runs()[-1]], ids=lambda run: run.id)
def test_the_nearest_run_of_a_published_scenario_is_its_own(run: PublishedRun) -> None:
    found = evidence(load(f"published:{run.id}"))
    nearest = found.runs[0]
    assert (nearest.parameters, nearest.device, nearest.gpus) == (run.parameters, run.device, run.gpus)


TORCHTITAN = ("framework=torchtitan", "strategy=fsdp", "strategy.workers=8", "batch=8")


def test_runs_of_the_same_model_framework_and_gpu_come_first() -> None:
    """Whatever the GPU's memory or power; runs of another model or framework follow."""
    found = evidence(load("llama-3-8b", ["cluster=dgx-h100", *TORCHTITAN])).runs
    assert [run.id for run in found[:2]] == ["torchtitan-0000", "torchtitan-0001"]
    assert all(run.device.startswith("H100") for run in found[:5])


def test_runs_of_the_same_gpu_come_before_those_of_others() -> None:
    found = evidence(load("llama-3-8b", ["cluster=dgx-b200", *TORCHTITAN])).runs
    assert all(run.device.startswith("B200") for run in found[:5])
    older = [place for place, run in enumerate(found) if run.generation == "ampere"]
    assert min(older, default=len(found)) > max(place for place, run in enumerate(found) if run.generation == "blackwell")


def test_mixtures_of_experts_are_compared_with_mixtures_only() -> None:
    found = evidence(load("mixtral-8x7b-experts-h100"))
    assert all(run.experts for run in found.runs)


def test_a_model_without_published_runs_has_no_evidence() -> None:
    assert evidence(load("resnet50-ring-p100")).to_dict() == {"runs": [], "similar": 0, "median_error": None, "coverage": None}


def test_the_error_and_the_coverage_are_those_of_the_runs() -> None:
    missed = RUN.model_copy(update={"measured_s": 2.2})
    found = Evidence(runs=(RUN, missed, missed))
    assert found.median_error == pytest.approx(0.5)
    assert found.coverage == pytest.approx(1 / 3)
    assert found.to_dict()["runs"][0]["error"] == pytest.approx(0.1)
    assert Evidence.model_validate_json(found.to_json()) == found


@pytest.mark.parametrize("run", published_runs()[::60], ids=lambda run: run.id)
def test_shipped_predictions_are_those_of_predict(run: PublishedRun) -> None:
    scenario = load(f"published:{run.id}")
    assert predict(scenario, interval=False).step_time_s == pytest.approx(run.predicted_s, rel=1e-4), "docs/scripts/evidence.py"


def test_predict_prints_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["predict", "llama-2-7b-fsdp-a100", "--evidence"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"evidence: \d+ similar published runs; median error [\d.]+ %, \d+ % in the 90 % interval", text)
    assert scaleproof.main(["predict", "llama-2-7b-fsdp-a100", "--evidence", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["evidence"]
    assert plain["similar"] == len(plain["runs"]) > 10
