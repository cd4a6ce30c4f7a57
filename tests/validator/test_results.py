"""Saved runs are found if they are equal, complete and correct; damaged ones are reported."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import save
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator import results
from scaleproof.validator.results import digest, find, folder_of, is_right, keep, listed, prepare, stamped

Make = Callable[..., Scenario]
RIGHT = Verification("one process", deviation=1e-7, tolerance=1e-2)


def measured(scenario: Scenario, on: str = "local", **fields: Any) -> Run:
    """A run as if it had been measured."""
    return stamped(replace(predict(scenario), origin="measured", spans=None, **fields), scenario, on)


def test_saved_runs_are_found(small: Make, tmp_path: Path) -> None:
    scenario = small()
    folder = folder_of(tmp_path, scenario)
    assert folder == tmp_path / "small" / "measured"
    assert find(folder, scenario, "local", verify=False) is None
    run = measured(scenario)
    keep(run, scenario, folder)
    found = find(folder, scenario, "local", verify=False)
    assert found is not None
    assert found.to_dict() == run.to_dict()
    assert load(tmp_path / "small" / "scenario.yaml") == scenario


def test_runs_of_changed_scenarios_other_places_and_incomplete_runs_are_not_found(small: Make, tmp_path: Path) -> None:
    scenario, folder = small(), tmp_path / "measured"
    keep(measured(scenario), scenario, folder)
    assert find(folder, small("steps=7"), "local", verify=False) is None
    assert find(folder, scenario, "netlab", verify=False) is None
    assert find(folder, scenario, "local", verify=True) is None, "it was not verified"
    keep(measured(scenario, verified=RIGHT), scenario, folder)
    assert find(folder, scenario, "local", verify=True) is not None
    keep(measured(scenario, verified=replace(RIGHT, deviation=0.3)), scenario, folder)
    assert find(folder, scenario, "local", verify=True) is None, "it was wrong"
    keep(measured(scenario, provenance={"partial": "3 of 5 steps"}), scenario, folder)
    assert find(folder, scenario, "local", verify=False) is None


def test_the_digest_depends_only_on_what_is_trained(small: Make) -> None:
    assert digest(small()) == digest(small("description=another text"))
    others = [
        "steps=7",
        "batch=24",
        "model.layers=5",
        "training.seed=1",
        "strategy.workers=2",
        "cluster.nodes=2",
        "compute=paced",
    ]
    assert len({digest(small(other)) for other in others} | {digest(small())}) == len(others) + 1


def test_the_digest_counts_frameworks_only_where_they_time_compute(small: Make) -> None:
    # without them, frameworks decide the buckets, with which ranks train
    given = "strategy.overlap=true", "strategy.bucket=25 MiB"
    names = "framework=ideal", "framework=gloo-cpu", "cluster.framework=gloo-cpu"
    assert {digest(small(*given, name)) for name in names} == {digest(small(*given))}
    assert digest(small()) != digest(small("framework=ideal"))
    paced = *given, "compute=paced"
    assert digest(small(*paced, "framework=gloo-cpu")) != digest(small(*paced, "framework=ideal"))


@pytest.mark.parametrize(
    ("override", "is_warned"),
    [
        ("steps=7", False), ("framework=gloo-cpu", False), ("framework=pytorch-ddp", False), ("framework=ideal", False),
        ("framework=torchtitan", True),
    ],
)  # fmt: skip
def test_a_named_framework_that_is_not_used_gives_a_warning(override: str, is_warned: bool, small: Make) -> None:
    warnings = measured(small(override)).warnings
    assert [one for one in warnings if "PyTorch, not with torchtitan" in one] == list(warnings)
    assert len(warnings) == is_warned


def test_a_run_is_correct_if_its_deviation_is_rounding(small: Make) -> None:
    assert is_right(measured(small())) is None
    assert is_right(measured(small(), verified=RIGHT)) is True
    assert is_right(measured(small(), verified=replace(RIGHT, deviation=0.011))) is False
    assert is_right(measured(small(), verified=replace(RIGHT, deviation=float("nan")))) is False


@pytest.mark.parametrize(
    ("on", "overrides", "reported"),
    [
        ("local", ["compute=paced", "strategy.workers=8"], True),
        ("netlab", ["compute=paced", "strategy.workers=8"], False),
        ("local", ["strategy.workers=8"], False),
        ("local", ["compute=paced"], False),
    ],
)
def test_emulated_ranks_of_several_nodes_need_their_network(on: str, overrides: list[str], reported: bool, small: Make) -> None:
    warnings = measured(small(*overrides), on, provenance={"warnings": "too loud"}).warnings
    memory_warning = "2 nodes communicate through this machine's memory, not the scenario's network; --on netlab builds it"
    assert warnings == ("too loud", memory_warning) if reported else warnings == ("too loud",)


def test_runs_are_listed_in_all_subfolders(small: Make, tmp_path: Path) -> None:
    for name in ("second", "first"):
        scenario = small(f"name={name}")
        keep(measured(scenario), scenario, tmp_path / "deep" / name / "measured")
    save(predict(small()), tmp_path / "deep" / "first" / "predicted")
    assert [kept.run.scenario for kept in listed(tmp_path) if kept.run] == ["first", "second"]
    with pytest.raises(InputError, match="no such folder"):
        list(listed(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "run.json").write_text('{"origin": "measured"'),
        lambda folder: (folder / "run.json").write_text("[]"),
        lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe"),
        lambda folder: (folder / "run.json").write_text('{"step_times_s": [], "losses": []}'),
        lambda folder: (folder / "spans.npz").write_bytes(b"PK\x03\x04 cut short"),
        lambda folder: change(folder, step_time_s="soon"),
        lambda folder: change(folder, provenance={"on": 3}),
        lambda folder: change(folder, verified={"rule": "one process"}),
        lambda folder: change(folder, step_time_interval_s=[1.0]),
    ],
)
def test_damaged_runs_are_reported_and_not_used(damage: Callable[[Path], Any], small: Make, tmp_path: Path) -> None:
    scenario = small()
    for name in "ab":
        run = replace(measured(small(f"name={name}")), spans=predict(scenario).spans)
        keep(run, scenario, tmp_path / name / "measured")
    damage(tmp_path / "a" / "measured")
    damaged, good = listed(tmp_path)
    assert damaged.run is None
    assert damaged.folder == tmp_path / "a" / "measured"
    assert damaged.problem
    assert "\n" not in damaged.problem
    assert good.run is not None
    assert find(tmp_path / "a" / "measured", scenario, "local", verify=False) is None


def change(folder: Path, **fields: Any) -> None:
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def once_measured(small: Make) -> Run:
    return measured(small())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_files_truncated_anywhere_are_reported(share: float, small: Make, once_measured: Run, tmp_path: Path) -> None:
    scenario = small()
    save(once_measured, tmp_path)
    whole = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(whole[: int(share * (len(whole) - 2))])
    (kept,) = listed(tmp_path)
    assert kept.run is None
    assert find(tmp_path, scenario, "local", verify=False) is None


def test_a_full_disk_gives_a_one_line_error_and_loses_nothing(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, folder = small(), tmp_path / "measured"
    keep(measured(scenario), scenario, folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunError, match=f"{folder}: No space left on device; make room"):
        keep(measured(scenario, losses=(1.0,)), scenario, folder)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_runs_without_room_for_spans_are_saved_without_and_measured_again(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, folder = small(), tmp_path / "measured"
    run = replace(measured(scenario), spans=predict(scenario).spans)
    keep(run, scenario, folder)
    write = Path.write_bytes

    def nearly_full(self: Path, content: bytes) -> int:
        if len(content) > 10_000 or "spans" in self.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", nearly_full)
    with pytest.raises(RunError, match="No space left on device; all but its spans is kept; make room"):
        keep(replace(run, losses=(1.0,)), scenario, folder)
    (kept,) = listed(tmp_path)
    assert kept.run is not None
    assert (kept.run.losses, kept.run.spans, kept.run.provenance["partial"]) == ((1.0,), None, "without spans")
    assert find(folder, scenario, "local", verify=False) is None


def test_a_folder_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--out .*file/out: Not a directory; choose a folder that can be written"):
        prepare(tmp_path / "file" / "out")
    prepare(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_runs_without_a_folder_are_not_saved(small: Make) -> None:
    assert results.keep_finished(small(), "local", [], (), None) == ""
