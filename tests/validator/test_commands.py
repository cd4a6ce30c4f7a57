"""measure and reconcile as whole commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.run import load_run

SCENARIO = """\
model: {kind: mlp, layers: 4, inputs: 32, hidden: 64, outputs: 16}
cluster: cpu-2core
strategy: {kind: pipeline, stages: 2, microbatches: 4}
batch: 16
steps: 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scaleproof", *arguments], capture_output=True, text=True, cwd=folder)


def test_measure_prints_and_keeps_the_run(folder: Path) -> None:
    done = run(folder, "measure", "mine.yaml", "--json", "--out", "out", "--set", "steps=3")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["origin"], summary["ranks"], len(summary["step_times_s"])) == ("measured", 2, 3)
    kept = load_run(folder / "out" / "measured")
    assert kept.step_time_s == summary["step_time_s"]
    assert kept.spans is not None


def test_measure_under_torchrun_joins_and_speaks_once(folder: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scaleproof"]
    done = subprocess.run(
        [sys.executable, *torchrun, "measure", "mine.yaml", "--json"], capture_output=True, text=True, cwd=folder, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2


def test_an_error_beyond_the_bound_is_an_exit_code(folder: Path) -> None:
    slow = "cluster.node.link.latency=100 ms"
    done = run(folder, "reconcile", "mine.yaml", "--set", slow, "--max-error", "25%", "--out", "out")
    assert done.returncode == 1
    assert "mine: error" in done.stderr
    assert "exceeds 25.0%" in done.stderr
    (case,) = json.loads((folder / "out" / "reconcile.json").read_text())["cases"]
    assert case["error"] > 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "mine.yaml", "--set", "model=resnet50"], "a resnet can be predicted but not measured"),
        (["reconcile", "mine.yaml", "mine.yaml"], "two scenarios have the same name"),
        (["measure", "mine.yaml", "--timeout", "-1"], "not a positive number of seconds"),
        (["measure", "mine.yaml", "--timeout", "soon"], "soon is not a positive number of seconds"),
        (["reconcile", "mine.yaml", "--max-error", "much"], "not a share; write it like 25%"),
        (["calibrate", "--out", "c.yaml", "--model", "resnet50"], "only gpt and mlp models can be trained"),
        (["calibrate", "--out", "c.yaml", "--groups", "1"], "a group has at least 2 ranks"),
        (["report", "."], "no results here"),
    ],
)
def test_bad_input_is_told_before_anything_runs(arguments: list[str], message: str, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before
