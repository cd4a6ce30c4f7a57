"""Histories are read as they were written, and drift is separated from noise."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.reports.read.history import FILE, Drift, drifts, read
from scaleproof.simulator.common.errors import InputError
from tests.reports.histories import STEADY_S, reconciled


def found(out: Path) -> dict[str, Drift]:
    return {one.scenario: one for one in drifts(read(out).reconciled)}


def test_a_step_time_outside_the_noise_drifts(tmp_path: Path) -> None:
    reconciled(tmp_path, "steady", (*STEADY_S, 0.0202))
    reconciled(tmp_path, "slower", (*STEADY_S, 0.0240))
    reconciled(tmp_path, "faster", (*STEADY_S, 0.0160))
    verdicts = found(tmp_path)

    assert {name: one.verdict for name, one in verdicts.items()} == {"steady": "steady", "slower": "drifts", "faster": "drifts"}
    assert verdicts["slower"].change == pytest.approx(0.2)
    assert verdicts["slower"].earlier_s == pytest.approx(0.02)


def test_an_earlier_outlier_does_not_hide_a_drift(tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", (*STEADY_S, 0.08, *STEADY_S, 0.024))

    assert found(tmp_path)["ring"].verdict == "drifts"


def test_few_runs_show_no_drift(tmp_path: Path) -> None:
    reconciled(tmp_path, "two", (0.02, 0.05))
    reconciled(tmp_path, "one", (0.02,))
    verdicts = found(tmp_path)

    assert set(verdicts) == {"two"}
    assert verdicts["two"].verdict == "too few"
    assert verdicts["two"].plain()["reach"] is None


def test_a_changed_scenario_of_the_same_name_is_no_drift(tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", STEADY_S)
    reconciled(tmp_path, "ring", (0.04,), week=1, samples=32)

    assert found(tmp_path)["ring"].verdict == "steady"


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-6, 1e3), change=st.floats(-0.5, 2.0))
def test_drift_does_not_depend_on_the_scale_of_step_times(scale: float, change: float) -> None:
    import pandas as pd

    def verdict(factor: float) -> Drift:
        times_s = [factor * time_s for time_s in (*STEADY_S, 0.02 * (1 + change))]
        table = pd.DataFrame({"scenario": "a", "host": "b", "workload": "c", "measured_s": times_s})
        table = table.assign(measured_low_s=table["measured_s"] * 0.99, measured_high_s=table["measured_s"] * 1.01)
        (one,) = drifts(table)
        return one

    here, there = verdict(1.0), verdict(scale)
    assert math.isclose(here.change, there.change, abs_tol=1e-9)
    assert math.isclose(here.reach, there.reach, rel_tol=1e-6)


def test_a_missing_history_gives_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no history here; scaleproof reconcile --out"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a database " * 20, b"SQLite format 3\x00" + b"\xff" * 200])
def test_damaged_files_give_a_one_line_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(InputError, match=r"history\.sqlite: ") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def _edit(out: Path, statement: str) -> None:
    connection = sqlite3.connect(out / FILE)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("pragma application_id = 7", "not a history of scaleproof"),
        ("pragma user_version = 9", "of version 9, expected version 1"),
        ("drop table calibrated", "cannot be read as a history"),
        ("update reconciled set at = at || '?'", "cannot be read as a history"),
        ("update reconciled set measured_s = measured_s || ' s'", "cannot be read as a history"),
        ("update reconciled set parts = '{'", "cannot be read as a history"),
    ],
)
def test_foreign_and_edited_files_give_a_one_line_error(statement: str, what: str, tmp_path: Path) -> None:
    reconciled(tmp_path, "ring", STEADY_S)
    _edit(tmp_path, statement)

    with pytest.raises(InputError, match=what):
        read(tmp_path)
