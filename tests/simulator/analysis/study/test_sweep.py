"""Sweeps: points become tasks, tasks become tables, and existing rows are not recomputed."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleproof
from scaleproof.simulator.analysis.study.store import opened, table
from scaleproof.simulator.analysis.study.study import read
from scaleproof.simulator.analysis.study.sweep import sweep, tasks
from scaleproof.simulator.common.errors import InputError, NotFoundError

STUDY: dict[str, Any] = {
    "scenario": "resnet50-servers-p100",
    "axes": {
        "strategy.workers": [7, 8],
        "cluster.network.bandwidth": ["1 Gbit/s", "10 Gbit/s", "25 Gbit/s"],
        "strategy.servers": {"one": 1, "four": 4},
    },
}
SLOW = """
scenario: resnet50-ring-p100
axes:
  strategy.workers: {from: 1, to: 64, points: 64}
  batch.per_worker: {from: 1, to: 20, points: 20}
"""


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts points computed from now on."""
    running = importlib.import_module("scaleproof.simulator.analysis.study.sweep")

    computed: list[int] = []

    def rows(blob: bytes, points: Any, *more: Any) -> Any:
        computed.extend(points.tolist())
        return whole(blob, points, *more)

    whole = running.rows
    monkeypatch.setattr(running, "rows", rows)
    return computed


def test_a_table_has_axes_results_and_errors_of_all_points() -> None:
    found = sweep(STUDY, overrides=["batch=256"])
    assert found["point"].tolist() == list(range(12))
    assert found["strategy.workers"].tolist() == [7] * 6 + [8] * 6
    assert found["strategy.servers"].tolist() == ["one", "four"] * 6
    assert found["cluster.network.bandwidth_Bps"].tolist()[:4] == [1.25e8, 1.25e8, 1.25e9, 1.25e9]
    assert found["error"].notna().tolist() == [True] * 6 + [False] * 6
    assert found["step_time_s"].isna().tolist() == [True] * 6 + [False] * 6
    good = found[found["error"].isna()]
    np.testing.assert_allclose(good["samples_per_s"] * good["step_time_s"], good["samples"])
    alone = scaleproof.predict(scaleproof.load("resnet50-servers-p100", ["batch=256", "strategy.workers=8"]), interval=False)
    assert good["step_time_s"].iloc[-1] == pytest.approx(alone.step_time_s, rel=1e-9)


def test_frameworks_are_an_axis_with_errors_for_unsupported_ones() -> None:
    study = {
        "scenario": "megatron-175b-3d-selene",
        "axes": {"framework": ["megatron-core-0.12", "torchtitan", "pytorch-ddp", "torchtitann"], "strategy.workers": [8]},
    }
    found = sweep(study)
    assert found["framework"].tolist() == ["megatron-core-0.12", "torchtitan", "pytorch-ddp", "torchtitann"]
    assert found["framework_is_default"].tolist() == [False, False, None, None]
    assert (found["step_time_s"][:2] > 0).all()
    assert found["step_time_s"][2:].isna().all()
    assert "pytorch-ddp does not support tensor; use " in found["error"][2]
    assert "no framework is called 'torchtitann'; did you mean" in found["error"][3]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_tasks_cover_each_point_once_and_batch_points_that_differ_in_numbers(workers: int, rates: int, seed: int) -> None:
    axes = {
        "cluster.network.latency": {"from": "1 us", "to": "1 ms", "points": rates},
        "strategy.workers": list(range(1, workers + 1)),
    }
    study = read({"scenario": "resnet50-ring-p100", "axes": axes})
    points = np.flatnonzero(np.random.default_rng(seed).random(len(study)) < 0.7)
    given = tasks(study, points, alone=3)
    np.testing.assert_array_equal(np.sort(np.concatenate([np.empty(0, int), *(one.points for one in given)])), points)
    for one in given:
        if one.together:
            assert len(np.unique(study.places(one.points)[:, 1])) == 1


def test_existing_results_are_not_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sweep(STUDY, tmp_path)
    parts = sorted(tmp_path.glob("part-*"))
    assert len(parts) > 1
    (lost,) = pq.read_table(parts[0])["point"].to_numpy().tolist()[:1]
    parts[0].unlink()
    computed = counted(monkeypatch)
    heard: list[int] = []
    found = sweep(STUDY, tmp_path, resume=True, progress=heard.append)
    pd.testing.assert_frame_equal(found, expected)
    assert lost in computed
    assert len(computed) == len(set(computed)) < len(found)
    assert heard[0] == len(found) - len(computed)
    computed.clear()
    pd.testing.assert_frame_equal(sweep(STUDY, tmp_path, resume=True), expected)
    assert computed == []
    pd.testing.assert_frame_equal(table(tmp_path), expected)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {}, "already contains results of this study; give --resume"),
        ({}, {"overrides": ["steps=5"], "resume": True}, "scenario.steps is absent there, 5 here"),
        ({}, {"intervals": True, "resume": True}, "intervals is False there, True here"),
        ({"axes": {"strategy.workers": [8]}}, {"resume": True}, "axes.strategy.workers is [7, 8] there, [8] here"),
    ],
)
def test_a_folder_of_another_study_is_rejected_with_the_difference(
    changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sweep({"scenario": STUDY["scenario"], "axes": {"strategy.workers": [7, 8]}}, tmp_path)
    with pytest.raises(InputError) as caught:
        sweep({"scenario": STUDY["scenario"], "axes": {"strategy.workers": [7, 8]}} | changes, tmp_path, **options)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_table_that_is_cut_off_is_named_with_the_remedy(tmp_path: Path) -> None:
    study = {"scenario": STUDY["scenario"], "axes": {"strategy.workers": [8]}}
    sweep(study, tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(InputError, match=rf"{part.name}: cannot be read .*; delete it, and sweep with --resume"):
        sweep(study, tmp_path, resume=True)
    part.unlink()
    assert len(sweep(study, tmp_path, resume=True)) == 1


def test_results_of_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"scenario": STUDY["scenario"], "axes": {"strategy.workers": [8]}}
    sweep(study, tmp_path)
    monkeypatch.setattr("scaleproof.simulator.analysis.study.store.version", lambda name: "99.0")
    with pytest.raises(InputError, match=r"version is 0\.1\.0 there, 99\.0 here"):
        sweep(study, tmp_path, resume=True)


def test_two_sweeps_cannot_write_to_one_folder(tmp_path: Path) -> None:
    study = read(STUDY)
    with (
        opened(tmp_path, study, False, False),
        pytest.raises(InputError, match=rf"a sweep \(process {os.getpid()} on .*\) writes to it"),
    ):
        sweep(study, tmp_path)
    with opened(tmp_path, study, False, False):
        pass


def test_a_folder_without_results_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no results of a study"):
        table(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "interrupt", "terminate"])
def test_a_killed_sweep_loses_only_points_in_progress(how: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(SLOW)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "scaleproof", "sweep", str(tmp_path / "study.yaml"), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and len(list(out.glob("part-*"))) < 3:
        time.sleep(0.05)
    if how == "terminate":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGKILL if how == "kill" else signal.SIGINT)
    # ends once all processes have closed stderr
    _, errors = process.communicate(timeout=60)
    there = table(out)
    assert 0 < len(there) < 1280
    assert there["point"].is_unique
    if how != "kill":
        by, code = ("", 130) if how == "interrupt" else (" by SIGTERM", 143)
        assert process.returncode == code
        line = rf"scaleproof sweep interrupted{by}; [\d,]+ of 1,280 points are in {re.escape(str(out))}; --resume continues\n"
        assert re.fullmatch(line, errors)
    # resuming works: the folder is no longer locked
    study = read(tmp_path / "study.yaml")
    with opened(out, study, False, True) as results:
        assert set(results.todo().tolist()) == set(range(len(study))) - set(there["point"].tolist())


def test_the_command_prints_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text("scenario: resnet50-ring-p100\naxes:\n  strategy.workers: [4, 7, 8]\n")
    assert scaleproof.main(["sweep", str(path), "--out", str(out), "--set", "batch=256"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"3 points, 1 of them with an error, in {out}"
    assert "samples/s at strategy.workers 8" in printed.out
    assert "once: --set batch=256: batch: 7 workers do not divide 256 samples" in printed.out
    # no progress bar without a terminal
    assert printed.err == ""


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("scenario: resnet50-ring-p100\naxes:\n  strategy.wrkers: [4]\n", [], "did you mean 'workers'?"),
        ("scenario: resnet50-ring-p100\naxes:\n  strategy.workers: [4]\n", ["--set", "nonsense"], "expected field=value"),
        ("scenario: resnet50-ring-p100\naxes:\n  strategy.workers: [4]\n", ["--executor", "cloud"], "choose from local"),
    ],
)
def test_invalid_input_gives_a_one_line_error(
    text: str, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    assert scaleproof.main(["sweep", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_no_point_that_fits_is_the_answer_of_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("scenario: llama-2-7b-fsdp-a100\naxes: {strategy.workers: [1, 2]}\n")
    assert scaleproof.main(["sweep", str(study), "--set", "training.zero=0", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "2 points, 0 of them with an error, 2 do not fit into memory" in printed
    assert "Out of memory at every point; the least need is " in printed
    assert "fastest" not in printed
