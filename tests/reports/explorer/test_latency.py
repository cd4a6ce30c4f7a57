"""How soon the page follows, on a machine that is quiet."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "explorer.py"


@pytest.mark.nightly
def test_a_change_is_shown_within_200_ms() -> None:
    spec = importlib.util.spec_from_file_location("explorer_benchmark", BENCHMARK)
    assert spec
    assert spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    command = [sys.executable, "-m", "scaleproof", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        where = process.stdout.readline().partition("?")[0]
        try:
            *_, (_, times_ms) = benchmark.changes_ms(where)
        finally:
            process.terminate()
    assert statistics.quantiles(times_ms, n=20)[-1] < 200
