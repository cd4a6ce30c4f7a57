"""Llama 3 405B on 16,384 GPUs: published failures, and the tables of the guide."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from scaleproof.simulator.analysis.goodput import goodput
from scaleproof.simulator.analysis.goodput.rates import failure_rates
from scaleproof.simulator.analysis.goodput.renewal import optimum_s, ratio
from scaleproof.simulator.scenario.load import load


@pytest.mark.full
def test_llama_3_on_16384_gpus_trains_nine_tenths_of_the_time() -> None:
    """arXiv 2407.21783: 419 unexpected interruptions in 54 days, and more than 90 % effective training time. What it does not
    say, how long it takes to notice and to restart, decides: at ten minutes together it is more, at twenty less."""
    result = goodput(load("llama3-405b-54-days"), 54, samples=100)
    assert result.failures == pytest.approx(419, rel=0.02)
    assert result.stops == pytest.approx(47, rel=0.1)
    assert result.ratio == pytest.approx(0.90, abs=0.02)
    assert result.ratio == pytest.approx(result.expected, abs=2e-3)


def test_tables_of_the_guide_equal_the_closed_form() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guides" / "goodput.md").read_text(encoding="utf-8")
    times = failure_rates(load("llama3-405b-54-days")).times
    rows = re.findall(r"^\| (\d+) min \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for minutes, cells in rows:
        changed = replace(times, detection_s=60.0 * int(minutes))
        best_s = optimum_s(partial(ratio, changed), 6.0, 1e5)
        result = [f"{100 * ratio(changed, interval_s):.1f} %" for interval_s in (best_s, 900.0, 1800.0, 3600.0)]
        assert cells.split(" | ") == result
    checkpoints = re.findall(r"^\| `(\{.*\})` \| (.*) \|$", page, re.MULTILINE)
    assert len(checkpoints) == 3
    for checkpoint, published_ratio in checkpoints:
        changed = failure_rates(load("llama3-405b-54-days", [f"reliability.checkpoint={checkpoint}"])).times
        best_s = optimum_s(partial(ratio, changed), max(6.0, changed.least_interval_s), 1e5)
        assert published_ratio == f"{100 * ratio(changed, best_s):.1f} %"
