"""The page of a capture shows its streams, its memory over the step, and what holds the peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scaleproof
from scaleproof.reports.charts.chart import Band, Line
from scaleproof.reports.charts.runs.memory_curve import RankCurve, memory_curve
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.memory.captured import classes_memory
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.captured.streams import class_streams
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.captured.records import data_parallel

MIB = 2**20
GIB = 2.0**30


def test_a_capture_is_predicted_and_shown_as_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_parallel().write(tmp_path / "train.zip")
    monkeypatch.chdir(tmp_path)
    assert scaleproof.main(["report", "train.zip", "--set", "cluster.network.bandwidth=50 GB/s"]) == 0
    assert capsys.readouterr().out.strip() == "train-report/index.html"
    page = (tmp_path / "train-report" / "index.html").read_text()
    for words in ("One step, stream by stream", "Memory over the step", "What the peak holds", "By line", "By module"):
        assert words in page
    assert {"streams-train.png", "memory-curve-train.png"} <= {
        path.name for path in (tmp_path / "train-report/figures").iterdir()
    }


def test_overrides_are_of_scenarios_and_captures_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["report", str(tmp_path), "--set", "cluster=dgx-a100"]) == 2
    assert "--set is for scenarios and captures" in capsys.readouterr().err


def test_the_curve_is_the_sum_of_what_is_live(tmp_path: Path) -> None:
    data_parallel().write(tmp_path / "train.zip")
    scenario = load(tmp_path / "train.zip")
    assert isinstance(scenario.strategy, CapturedStrategy)
    (streams,) = class_streams(scenario.strategy.script, job_of(scenario), 16)
    (live,) = (one.live for one in classes_memory(scenario))
    (view,) = memory_curve("curve", "curve", [RankCurve(streams, live)], 80 * GIB).views
    bands = [mark for mark in view.marks if isinstance(mark, Band)]
    total, peak = (mark for mark in view.marks if isinstance(mark, Line))
    assert [band.name for band in bands] == ["parameters", "optimizer states", "activations"]
    assert total.y == bands[-1].high
    assert peak.y == [live.peak.size_bytes / GIB] == [max(total.y)]
    # activations live from the forward pass on, and each band begins where the one below it ends
    assert np.ptp(bands[0].high) == 0
    assert bands[1].low == bands[0].high
    assert view.finding.startswith("Peak: 224 MiB, 0.3\N{NARROW NO-BREAK SPACE}% of the device, in the forward pass of fc")
