"""Reading a results folder: readable parts are used, unreadable ones are noted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.reports.read.results import read
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.files import save
from scaleproof.simulator.scenario.dump import dump, keep
from scaleproof.simulator.scenario.schema import Scenario
from tests.reports.example import CASES, edit, make_run, write_results

Make = Callable[..., Scenario]


def test_reads_all_cases_with_their_spans(eight: Path) -> None:
    found = read(eight)
    assert [case.scenario for case in found.cases] == [case[0] for case in CASES] + ["ring-8"]
    assert found.notes == ()
    assert (found.host, found.cluster, found.max_error) == ("workstation", "this-machine", 0.25)
    assert all(run.spans is not None for case in found.compared for run in case.runs)


def test_missing_folders_and_folders_without_results_give_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="no results here; scaleproof predict"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["", '{"version": 1, "cases": [', "[1, 2]", '"text"', "\x00"])
def test_runs_are_read_where_the_reconcile_file_is_incomplete(tmp_path: Path, content: str) -> None:
    write_results(tmp_path, CASES[:2])
    (tmp_path / "reconcile.json").write_text(content)
    found = read(tmp_path)
    assert [case.scenario for case in found.compared] == ["ring-2", "ring-4"]
    assert len(found.notes) == 1
    assert "reconcile.json" in found.notes[0]


def _break(entry: dict[str, Any], field: str, value: Any) -> None:
    entry["predicted"][field] = value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_time_s", 0),
        ("step_time_s", float("nan")),
        ("step_time_s", None),
        ("breakdown_s", {"compute": "much"}),
        ("ranks", 0),
        ("origin", "guessed"),
    ],
)
def test_invalid_summaries_are_skipped_with_a_note(tmp_path: Path, field: str, value: Any) -> None:
    write_results(tmp_path, CASES[:2])
    edit(tmp_path, lambda plain: _break(plain["cases"][0], field, value))
    found = read(tmp_path)
    assert found.cases[0].predicted is None
    assert found.cases[0].measured is not None
    assert found.cases[1].error is not None
    assert found.notes[0].startswith(f"ring-2: predicted summary: {field}")


def test_damaged_spans_only_remove_the_timeline(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:1])
    spans_file = tmp_path / "runs/ring-2/measured/spans.npz"
    whole = spans_file.read_bytes()
    with np.load(spans_file) as columns:
        odd_phase = dict(columns) | {"phase": columns["phase"] + 40}
        uneven = dict(columns) | {"rank": columns["rank"][1:]}
    contents = [whole[: len(whole) // 2], b"", b"not a zip"]
    for content in contents:
        spans_file.write_bytes(content)
        _assert_no_timeline(tmp_path)
    for arrays in (odd_phase, uneven):
        np.savez(spans_file, allow_pickle=False, **arrays)
        _assert_no_timeline(tmp_path)


def _assert_no_timeline(folder: Path) -> None:
    found = read(folder)
    measured = found.cases[0].measured
    assert measured is not None
    assert measured.spans is None
    assert len(found.notes) == 1
    assert found.notes[0].startswith("runs/ring-2/measured/spans.npz cannot be read")


def test_spans_of_another_run_are_ignored(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:1])
    save(make_run("measured", (*CASES[0][:4], 0.5, 0.0)), tmp_path / "runs/ring-2/measured")
    found = read(tmp_path)
    measured = found.cases[0].measured
    assert measured is not None
    assert measured.spans is None
    assert "another run" in found.notes[0]


@pytest.mark.parametrize("place", ["../elsewhere", "/", "\x00", "\ud800", "a" * 5000])
def test_files_outside_the_folder_are_not_read(tmp_path: Path, place: str) -> None:
    save(make_run("predicted", CASES[0]), tmp_path / "elsewhere/predicted")
    inside = tmp_path / "results"
    inside.mkdir()
    write_results(inside, CASES[:1])
    edit(inside, lambda plain: plain["cases"][0].update(folder=place))
    found = read(inside)
    predicted = found.cases[0].predicted
    assert predicted is not None
    assert predicted.spans is None
    assert len(found.cases[0].runs) == 2
    assert all("is not within the results" in note for note in found.notes)


def test_the_scenario_is_read_from_any_place_where_it_was_saved(small: Make, tmp_path: Path) -> None:
    scenario = small()
    run = make_run("predicted", CASES[0])
    for number, place in enumerate(("predicted", "ring-2/measured", "runs/ring-2/predicted")):
        folder = tmp_path / str(number) / place
        save(run, folder)
        keep(scenario, folder.parent)
        (case,) = read(tmp_path / str(number)).cases
        assert case.scenario_yaml == dump(scenario)
    write_results(tmp_path / "reconciled", CASES[:2])
    keep(scenario, tmp_path / "reconciled/runs/ring-4")
    assert [case.scenario_yaml for case in read(tmp_path / "reconciled").cases] == ["", dump(scenario)]


def test_an_unreadable_scenario_is_noted(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:2])
    for name, content in (("ring-2", b"\xff\xfe"), ("ring-4", b"#" * (2**20 + 1))):
        (tmp_path / "runs" / name / "scenario.yaml").write_bytes(content)
    found = read(tmp_path)
    assert [case.scenario_yaml for case in found.cases] == ["", ""]
    (note, other) = found.notes
    assert note.startswith("runs/ring-2/scenario.yaml cannot be read (")
    assert other == "runs/ring-4/scenario.yaml cannot be read (more than 1.00 MiB); left out"


def test_a_newer_version_is_noted(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:1], version=2)
    found = read(tmp_path)
    assert "version 2" in found.notes[0]
    assert len(found.compared) == 1


def test_invalid_explanations_are_skipped(tmp_path: Path) -> None:
    folder = write_results(tmp_path, CASES[:2])
    edit(folder, lambda plain: plain["cases"][0].update(explanation={"partings": [{"rank": -1}]}, inside=True))
    found = read(folder)
    assert [case.explanation for case in found.cases] == [None, None]
    assert [case.inside for case in found.cases] == [True, None]
    (note,) = found.notes
    assert note.startswith("ring-2: explanation: partings.0.")
