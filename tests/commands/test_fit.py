"""The command fit: from a table of runs to a framework file, the next run and a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scaleproof
from tests.validator.fitting.tables import LAYOUTS, REFERENCE, table


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return table(tmp_path / "runs.csv", {"kernel_scale": 1.2}, LAYOUTS[:3])


@pytest.mark.full
def test_it_prints_what_was_learned_and_what_to_measure_next(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = runs.with_name("mine.yaml")
    assert scaleproof.main(["fit", str(runs), "--scenario", REFERENCE, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "nanotron on aws-p5, fitted to 3 runs of Llama-style 1.34B" in text
    kernels = next(line for line in text.splitlines() if line.strip().startswith("kernel_scale"))
    assert "moved" in kernels
    assert "not learned from these runs:" in text
    assert "measure next, of " in text
    assert f"use it with --set framework={out}" in text
    assert scaleproof.main(["predict", REFERENCE, "--set", f"framework={out}"]) == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.full
def test_json_has_runs_constants_target_and_next_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["fit", str(runs), "--scenario", REFERENCE, "--gpus", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["gpus"] for run in found["runs"]] == [8, 8, 16]
    assert all(abs(run["after_s"] / run["measured_s"] - 1) < 0.08 for run in found["runs"])
    assert found["target"]["low_s"] < found["target"]["after_s"] < found["target"]["high_s"]
    assert found["next_runs"][0]["deviation"] <= found["deviation"]
    assert "strategy: {kind: hybrid" in found["next_runs"][0]["fields"]


def test_runs_of_another_framework_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.write_text("framework,step_time\nnanotron,2 s\nmegatron-core-0.12,2.5 s\n", encoding="utf-8")
    assert scaleproof.main(["fit", str(runs), "--scenario", REFERENCE]) == 2
    error = capsys.readouterr().err
    assert "runs.csv:3: ran with the framework megatron-core-0.12, not nanotron" in error


def test_bad_input_is_one_line_with_its_place(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.write_text("tp,step_time\n1,2 m/s\n", encoding="utf-8")
    assert scaleproof.main(["fit", str(runs), "--scenario", REFERENCE]) == 2
    assert "runs.csv:2: step_time: " in capsys.readouterr().err
    assert scaleproof.main(["fit", str(runs.with_name("none.csv")), "--scenario", REFERENCE]) == 2
    assert "none.csv: no such file" in capsys.readouterr().err
