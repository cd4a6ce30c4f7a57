"""What reconcile prints for measured and for failed cases."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from sqlite3 import connect

import pytest

from scaleproof.commands.measuring import reconcile
from scaleproof.commands.text.runs import describe_steps
from scaleproof.simulator.cluster.quantities import Interval
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.history import FILE
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from scaleproof.validator.record.provenance import disturbance

Make = Callable[..., Scenario]


def case(small: Make, *changes: str, interval: float = 0.0) -> ReconciledCase:
    """A run measured with `changes` and predicted without them. interval: relative half-width of the prediction interval."""
    predicted = predict(small())
    about_s = predicted.step_time_s * (1 - interval), predicted.step_time_s * (1 + interval)
    measured = replace(predict(small(*changes)), origin="measured", rank_names=(), spans=None)
    return ReconciledCase(small(), replace(predicted, prediction_interval_s=about_s if interval else None), measured)


def printed(capsys: pytest.CaptureFixture[str], one: ReconciledCase, as_table: bool = False, steps: bool = False) -> list[str]:
    parts = reconcile._parts if as_table else reconcile._sentences
    reconcile._print_case(parts, describe_steps if steps else reconcile._no_steps, one)
    return capsys.readouterr().out.splitlines()


def test_a_case_prints_a_line_its_phases_and_its_explanation(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = printed(capsys, case(small, "cluster.device.peak.fp32=0.4 TFLOP/s", interval=0.01))
    assert head.split()[-1] == "no"
    assert [line.split()[0] for line in lines[:4]] == ["framework:", "forward", "backward", "optimizer"]
    assert "calibrate --cluster FILE --probe layer" in " ".join(map(str.strip, lines))
    assert all(len(line) <= 100 for line in lines)


def test_without_a_prediction_interval_coverage_is_not_reported(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, case(small))[0].split()[-1] == "-"
    assert printed(capsys, case(small, interval=0.1))[0].split()[-1] == "yes"


def test_the_table_of_all_parts_ends_with_their_total(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, case(small, "cluster.device.peak.fp32=0.4 TFLOP/s"), as_table=True)
    assert lines[-1].split()[0] == "total"
    assert any(line.split()[:2] == ["communication", "rate"] for line in lines)


def test_distributions_of_single_steps_are_compared_on_request(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    one = case(small)
    assert one.measured is not None
    times_s = tuple(one.measured.step_time_s * factor for factor in (1.0, 1.1, 1.2))
    one = replace(one, measured=replace(one.measured, step_times_s=times_s))
    lines = printed(capsys, one, steps=True)
    assert [line.split()[:2] for line in lines if line.startswith("  step")] == [
        ["step", name] for name in ("p50", "p90", "p99")
    ]
    assert any("KS distance of" in line for line in lines)
    assert not any("KS distance" in line for line in printed(capsys, one))


def test_disturbed_runs_are_marked_and_not_counted(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    quiet, other = case(small, interval=0.1), case(small, "cluster.device.peak.fp32=0.4 TFLOP/s", interval=0.1)
    assert other.measured is not None
    provenance = disturbance(0.61)
    busy = replace(other, measured=replace(other.measured, provenance=provenance))
    assert "  not counted: other work disturbed the run" in printed(capsys, busy)
    assert "  not counted: other work disturbed the run" not in printed(capsys, quiet)
    assert reconcile._verdict([quiet, busy], None) == 0
    first, *others = capsys.readouterr().out.splitlines()
    lines = " ".join(" ".join(others).split())
    assert first == "median error 0.0 %, worst 0.0 % (small), 1 runs"
    assert "1 of 1 measured values inside their 90 % intervals" in lines
    assert "not counted, since other work disturbed them or their calibration: small; measure again on a quiet machine" in lines
    assert reconcile._verdict([busy], None) == 0
    assert "median" not in capsys.readouterr().out
    predicted = replace(quiet.predicted, provenance=disturbance(0.61, "calibration", "calibrate"))
    on_busy = replace(quiet, predicted=predicted)
    assert "  not counted: other work disturbed the calibration of its cluster" in printed(capsys, on_busy)
    # an error that is not allowed is still one
    assert reconcile._verdict([busy], 0.01) == 1
    assert (busy.plain()["disturbed"], quiet.plain()["disturbed"]) == (provenance["disturbed"], "")


def test_scenarios_that_could_not_be_measured_are_reported_as_failed(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(capsys, ReconciledCase(small(), predict(small()), None, "rank 1 died"))
    assert line.split()[-1] == "failed"


def test_the_last_lines_count_errors_and_intervals(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case(small, interval=0.1), case(small, "cluster.device.peak.fp32=0.4 TFLOP/s", interval=0.1), case(small)]
    assert reconcile._verdict(cases, None) == 0
    assert "1 of 2 measured values inside their 90 % intervals" in capsys.readouterr().out
    assert reconcile._verdict([cases[2]], None) == 0
    assert "inside" not in capsys.readouterr().out


@pytest.mark.parametrize(("provenance", "kept"), [({"date": "2026-11-20T10:00:00+00:00"}, 1), ({}, 0)])
def test_the_history_records_runs_and_quantities_of_calibrated_clusters(
    small: Make, tmp_path: Path, provenance: dict[str, str], kept: int
) -> None:
    one = case(small)
    found = {"uncertainty": {"device": Interval(low="96 %", high="104 %")}, "provenance": provenance}
    cluster = one.scenario.cluster.model_copy(update=found)
    calibrated = replace(one, scenario=one.scenario.model_copy(update={"cluster": cluster}))
    reconcile._remember([calibrated, calibrated], argparse.Namespace(out=tmp_path, update=None))
    with closing(connect(tmp_path / FILE)) as history:
        assert history.execute("select count(*) from reconciled").fetchone()[0] >= 1
        assert history.execute("select count(*) from calibrated").fetchone() == (kept,)
