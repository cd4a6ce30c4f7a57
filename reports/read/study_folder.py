"""Study folder: reads what `sweep` leaves: all that can be read is used, the rest is noted. Nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.pages.text import family_name
from scaleproof.simulator.analysis.study.evaluate import RESULTS
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.analysis.study.study import read as read_study
from scaleproof.simulator.common.errors import ScaleproofError, one_line
from scaleproof.simulator.scenario import dump

if TYPE_CHECKING:
    import pandas as pd

ASKED: Final = "study.json"
PARTS: Final = "part-*.parquet"
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class StudyFolder:
    """What a folder holds. asked: study.json. names: of an axis' values, by field, where they are parts. axes: columns of the
    table that are no results. wrong: what was wrong with points, and how often. notes: what could not be read."""

    asked: Mapping[str, Any]
    study: Study | None
    names: Mapping[str, list[str]]
    points: pd.DataFrame
    axes: tuple[str, ...]
    wrong: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self._at("name") or "study")

    @property
    def model_name(self) -> str:
        return str(self._at("model", "name") or self.name)

    @property
    def model_kind(self) -> str:
        return str(self._at("model", "kind"))

    @property
    def strategy_name(self) -> str:
        return family_name(str(self._at("strategy", "kind")))

    @property
    def cluster_name(self) -> str:
        return str(self._at("cluster", "name"))

    def _at(self, *path: str) -> Any:
        """What the scenario says there; "" where it says nothing."""
        value = self.asked.get("scenario")
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return "" if value is None else value

    def study_yaml(self) -> str:
        """A study that leads to the same results with its scenario beside it; "" where what was asked cannot be read."""
        if self.study is None:
            return ""
        axes: dict[str, Any] = {}
        for axis in self.study.axes:
            names = self.names.get(axis.field)
            axes[axis.field] = dict(zip(names, axis.values, strict=True)) if names else list(axis.values)
        plain = {"scenario": dump.FILE, "axes": axes}
        return dump.written(plain | ({"zip": self.asked["zip"]} if self.asked.get("zip") else {}))

    def scenario_yaml(self) -> str:
        """What all points have in common; "" where what was asked cannot be read."""
        return dump.written(self.asked["scenario"]) if self.study is not None else ""


def is_study(folder: Path) -> bool:
    """Whether a sweep has written there."""
    return (folder / ASKED).is_file() or any(folder.glob(PARTS))


def read(folder: Path) -> StudyFolder:
    """What `folder` holds of a study, even if that is nothing."""
    notes: list[str] = []
    asked = _asked(folder, notes)
    study = _study(asked, notes)
    points = _points(folder, notes)
    if study is not None:
        outside = ~points["point"].between(0, len(study) - 1)
        lacking = [axis.column for axis in study.axes if axis.column not in points]
        if outside.any() or (lacking and len(points)):
            notes.append(f"the tables are of another study than {ASKED}, which is passed over")
            study = None
    axes = tuple(str(name) for name in points.columns if name not in RESULTS and name != "point")
    if study is not None and len(points) < len(study):
        notes.append(f"{len(points):,} of {len(study):,} points are there; sweep --resume goes on with the others")
    wrong = points["error"].dropna().value_counts().to_dict()
    names = _names(study, points) if study is not None else {}
    return StudyFolder(
        asked, study, names, points, axes, {str(text): int(count) for text, count in wrong.items()}, tuple(notes)
    )


def _asked(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        plain = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{ASKED} is not there: what was asked is not known")
        return {}
    except _UNREADABLE as error:
        notes.append(f"{ASKED} cannot be read ({_reason(error)}): what was asked is not known")
        return {}
    return plain if isinstance(plain, dict) else {}


def _study(asked: Mapping[str, Any], notes: list[str]) -> Study | None:
    """What was asked, as it can be asked again; None where it cannot."""
    if not asked:
        return None
    try:
        axes = {field: asked["axes"][field] for field in asked["order"]}
        return read_study({"scenario": asked["scenario"], "axes": axes, "zip": asked.get("zip", [])})
    except (*_UNREADABLE, ScaleproofError) as error:
        notes.append(f"{ASKED} is not a study that this version can forecast ({_reason(error)})")
        return None


def _points(folder: Path, notes: list[str]) -> pd.DataFrame:
    """All rows that can be read, by point, with all columns that results have; numbers are numbers or not there."""
    import pandas as pd
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    parts = []
    for path in sorted(folder.glob(PARTS)):
        try:
            part = pq.read_table(path).to_pandas()
            part["point"] = pd.to_numeric(part["point"], errors="raise").astype("int64")
            parts.append(part)
        except _UNREADABLE as error:
            notes.append(f"{path.name} cannot be read ({_reason(error)}); left out")
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"point": pd.Series(dtype="int64")})
    found.columns = found.columns.map(str)
    for name, (kind, _) in RESULTS.items():
        given = found[name] if name in found else pd.Series([None] * len(found), dtype=object)
        if kind in (int, float):
            given = pd.to_numeric(given, errors="coerce").astype(float)
            found[name] = given.where(given.abs() < float("inf"))
        elif kind is str:
            found[name] = given.where(given.isna(), given.astype(str)).astype(object)
        else:
            found[name] = given.astype(object)
    return found.drop_duplicates("point", keep="last").sort_values("point", ignore_index=True)


def _names(study: Study, points: pd.DataFrame) -> dict[str, list[str]]:
    """Names of parts, which the table alone has; those of which it has no point are told by what they are."""
    result = {}
    places = study.places(points["point"].to_numpy())
    for i, axis in enumerate(study.axes):
        if all(isinstance(value, dict | list) for value in axis.values):
            told = points[axis.column].tolist() if axis.column in points else []
            known = dict(zip(places[:, i].tolist(), told, strict=True))
            names = [str(known.get(place, words)) for place, words in enumerate(axis.told)]
            if len(set(names)) == len(names):
                result[axis.field] = names
    return result


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] if isinstance(error, ScaleproofError) else one_line(error)
