"""Reading a study folder: readable parts are used, unreadable ones are noted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from scaleproof.reports.read.study_folder import is_study, read
from scaleproof.simulator.analysis.study.store import table
from scaleproof.simulator.analysis.study.sweep import sweep


@pytest.fixture
def copy(swept: Path, tmp_path: Path) -> Path:
    """A private copy of the study's folder."""
    shutil.copytree(swept, tmp_path / "swept")
    return tmp_path / "swept"


def test_all_files_of_a_study_folder_are_read(swept: Path) -> None:
    found = read(swept)
    assert is_study(swept)
    assert not found.notes
    assert len(found.points) == 12
    assert found.study is not None
    assert found.study.axes[0].table_values == ("ring", "servers")
    assert (found.name, found.model_name, found.model_kind, found.cluster_name) == ("small", "three-layers", "mlp", "eight")
    assert found.points["rate" if "rate" in found.points else "samples_per_s"].notna().all()


def test_study_and_scenario_files_reproduce_the_results(swept: Path, tmp_path: Path) -> None:
    found = read(swept)
    (tmp_path / "study.yaml").write_text(found.study_yaml())
    (tmp_path / "scenario.yaml").write_text(found.scenario_yaml())
    again = sweep(tmp_path / "study.yaml")
    first = table(swept)
    assert again["strategy"].tolist() == first["strategy"].tolist()
    assert again["step_time_s"].tolist() == pytest.approx(first["step_time_s"].tolist())


def test_a_truncated_table_is_noted_and_the_others_are_used(copy: Path) -> None:
    part = sorted(copy.glob("part-*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:100])
    found = read(copy)
    assert f"{part.name} cannot be read" in found.notes[0]
    assert "points are complete; sweep --resume computes" in found.notes[1] or len(found.points) == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"scenario": {}, "axes": {}, "order": ["a"]}', '{"order": 3, "axes": 4}']
)
def test_invalid_study_files_do_not_prevent_reading_points(copy: Path, text: str) -> None:
    (copy / "study.json").write_text(text)
    found = read(copy)
    assert found.study is None
    assert len(found.points) == 12
    assert found.study_yaml() == found.scenario_yaml() == ""
    (copy / "study.json").unlink()
    assert "is missing" in read(copy).notes[0]


def test_tables_of_another_study_are_read_without_its_axes(copy: Path) -> None:
    plain = json.loads((copy / "study.json").read_text())
    plain["axes"]["strategy.workers"] = [2]
    (copy / "study.json").write_text(json.dumps(plain))
    found = read(copy)
    assert found.study is None
    assert "another study" in found.notes[-1]


def test_missing_and_mistyped_columns_are_tolerated(copy: Path) -> None:
    for part in copy.glob("part-*.parquet"):
        part.unlink()
    odd = pd.DataFrame({"point": ["0", "1"], "samples_per_s": ["7.5", "fast"], "<b>": ["=1", "</script>"]})
    odd.to_parquet(copy / "part-000001.parquet")
    found = read(copy)
    assert found.points["samples_per_s"].fillna(-1).tolist() == [7.5, -1]
    assert found.points["step_time_s"].isna().all()
    pd.DataFrame({"no": [1]}).to_parquet(copy / "part-000002.parquet")
    assert "part-000002.parquet cannot be read" in read(copy).notes[0]
