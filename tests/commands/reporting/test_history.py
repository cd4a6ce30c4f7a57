"""The command history: a table, JSON, a picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from scaleproof.commands.reporting import history
from scaleproof.simulator.common.errors import InputError
from tests.reports.histories import STEADY_S, calibrated, reconciled


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    history.mount(parser.add_subparsers())
    options = parser.parse_args(["history", *map(str, words)])
    code: int = options.command(options)
    return code


@pytest.fixture
def out(tmp_path: Path) -> Path:
    reconciled(tmp_path, "ring", (*STEADY_S, 0.024))
    reconciled(tmp_path, "servers", (0.01,), week=1)
    calibrated(tmp_path, "50 us", "60 us")
    return tmp_path


def test_the_table_lists_runs_oldest_first_with_drift_and_quantities(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(out) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[1].startswith("2026-10-01 08:00  ring ")
    assert "outside the 90 % interval" in lines[6]
    assert lines[7].startswith("2026-10-08 08:00  servers ")
    assert any("ring" in line and "+20.0 %  drifts" in line for line in lines)
    assert any("lab: node.link.latency" in line and "60.0 us" in line for line in lines)


def test_json_has_all_runs_drifts_and_calibrations(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(out, "--json") == 0
    plain = json.loads(capsys.readouterr().out)

    assert len(plain["reconciled"]) == 7
    assert plain["reconciled"][0]["parts"]["measured_s"] == {"compute": 0.01}
    assert plain["reconciled"][0]["at"] == "2026-10-01T08:00:00+00:00"
    assert [one["verdict"] for one in plain["drift"]] == ["drifts"]
    assert len(plain["calibrated"]) == 2


def test_scenario_option_selects_one_scenario(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(out, "--scenario", "servers") == 0
    assert "ring" not in capsys.readouterr().out
    with pytest.raises(InputError, match="--scenario nobody: not in this history; it has ring, servers"):
        run(out, "--scenario", "nobody")


def test_a_picture_is_written(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(out, "--plot", out / "drift.svg") == 0
    assert (out / "drift.svg").read_bytes().startswith(b"<?xml")
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "drift.svg")
    with pytest.raises(InputError, match=r"drift\.pdf: give a file name that ends in \.svg or \.png"):
        run(out, "--plot", out / "drift.pdf")


def test_long_histories_are_shortened_unless_one_scenario_is_selected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reconciled(tmp_path, "ring", STEADY_S * 7)
    assert run(tmp_path) == 0
    assert "… 5 earlier" in capsys.readouterr().out
    assert run(tmp_path, "--scenario", "ring") == 0
    assert "earlier\n2026" not in capsys.readouterr().out
