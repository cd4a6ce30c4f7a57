"""The command claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import scaleproof
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from tests.proof.claims.example import CLAIM, SCENARIO

AXIS = {"name": "bandwidth", "unit": "Gbit/s", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "values": [1, 100]}


@pytest.fixture
def example(tmp_path: Path) -> str:
    path = tmp_path / "example.yaml"
    path.write_text(yaml.safe_dump(CLAIM | {"netlab": {"scenario": SCENARIO, "axis": AXIS}}))
    return str(path)


def test_a_claim_is_printed_with_its_numbers(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["claims", example]) == 0
    text = capsys.readouterr().out
    assert text.startswith("example: Rings are fast.\n  predicted  ")
    assert "scaling efficiency, % of a step in which workers compute; holds if ring at least 50 %" in text
    assert "  because    They are said to be." in text
    assert "measured" not in text


def test_json_has_verdicts_numbers_and_borders(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["claims", example, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["name"], result["claim"], result["measured"]) == ("example", CLAIM["claim"], None)
    predicted = result["predicted"]
    assert predicted["verdict"] in ("holds", "holds when", "does not hold")
    assert {name for point in predicted["points"] for name in point["values"]} == {"ring", "one worker"}
    assert all(point["holds"] == (point["tested"] >= 0.5) for point in predicted["points"])


def test_out_writes_json_and_a_figure_for_each_claim(example: str, tmp_path: Path) -> None:
    assert scaleproof.main(["claims", example, "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"claims.json", "example.png", "example.svg"}
    assert (tmp_path / "out" / "example.png").read_bytes().startswith(b"\x89PNG")
    assert "Rings are fast." in (tmp_path / "out" / "example.svg").read_text()


def test_measurements_are_saved_next_to_the_claim_and_printed_with_their_date(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, Any]] = []

    def measure(scenario: Scenario, on: str, watch: Any) -> Run:
        calls.append((on, watch.verify))
        return replace(timed(scenario), provenance={"date": "2026-11-22T12:00:00+00:00", "warnings": "a busy machine"})

    monkeypatch.setattr("scaleproof.validator.measure.measure", measure)
    assert scaleproof.main(["claims", example, "--on", "netlab"]) == 0
    text = capsys.readouterr().out
    assert "(netlab, 22 November 2026, with warnings)\n" in text
    assert "\n    warning: a busy machine\n" in text
    # a line that does not follow the axis, and one that does at two places
    assert calls == [("netlab", False)] * 4
    assert (tmp_path / "measured.json").is_file()
    assert scaleproof.main(["claims", example, "--json", "--out", str(tmp_path / "out")]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    measured = plain["measured"]
    assert (measured["on"], measured["date"]) == ("netlab", "2026-11-22T12:00:00+00:00")
    assert measured["verdict"] == measured["predicted"]["verdict"]


@pytest.mark.parametrize(
    ("words", "message"), [(["nonsense"], "no claim is called 'nonsense'"), (["none.yaml"], "no such file")]
)
def test_unknown_names_give_a_one_line_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["claims", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
