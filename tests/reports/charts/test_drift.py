"""Pictures of drift: any history is drawn, reproducibly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.reports.charts.drift import drift
from scaleproof.reports.read.history import read
from scaleproof.simulator.common.errors import InputError
from tests.reports.histories import STEADY_S, calibrated, reconciled


def test_scenarios_and_quantities_are_drawn(tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", (*STEADY_S, 0.024))
    reconciled(tmp_path, "servers", (0.01,), week=1)
    calibrated(tmp_path, "50 us", "60 us")
    history = read(tmp_path)
    svg = drift(history)

    assert svg.startswith(b"<?xml")
    assert drift(history) == svg
    assert drift(history, "png").startswith(b"\x89PNG")


def test_runs_without_intervals_and_single_tables_are_drawn(tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", STEADY_S)
    calibrated(tmp_path, "50 us")
    history = read(tmp_path)
    bare = history.reconciled.assign(
        **{f"{side}_{edge}_s": float("nan") for side in ("predicted", "measured") for edge in ("low", "high")}
    )

    assert drift(replace(history, reconciled=bare))
    assert drift(replace(history, reconciled=history.reconciled.iloc[:0]))
    assert drift(replace(history, calibrated=history.calibrated.iloc[:0]))


def test_an_empty_history_gives_a_one_line_error(tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", STEADY_S)
    history = read(tmp_path)

    with pytest.raises(InputError, match="the history is empty"):
        drift(replace(history, reconciled=history.reconciled.iloc[:0]))
