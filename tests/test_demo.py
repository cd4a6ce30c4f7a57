"""The accuracy that `make demo` promises. It measures, so it runs nightly, when the machine is quiet."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "scenarios" / "demo"


@pytest.mark.nightly
def test_the_demos_median_error_is_at_most_fifteen_percent(tmp_path: Path) -> None:
    scaleproof = [sys.executable, "-m", "scaleproof"]
    subprocess.run([*scaleproof, "calibrate", "--out", "cluster.yaml"], cwd=tmp_path, check=True)
    scenarios = map(str, sorted(DEMO.glob("*.yaml")))
    subprocess.run(
        [*scaleproof, "reconcile", *scenarios, "--set", "cluster=cluster.yaml", "--out", "."], cwd=tmp_path, check=True
    )
    cases = json.loads((tmp_path / "reconcile.json").read_text())["cases"]
    assert {case["ranks"] for case in cases} == {1, 2, 4}
    assert {case["family"] for case in cases} == {"parameter_server", "data_parallel", "pipeline", "hybrid"}
    assert statistics.median(abs(case["error"]) for case in cases) <= 0.15
