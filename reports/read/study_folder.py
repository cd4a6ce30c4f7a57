"""Reads the folder that `sweep` writes. Unreadable files are noted and left out; nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.text import family_name
from scaleproof.simulator.analysis.study.evaluate import RESULTS
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.analysis.study.study import read as read_study
from scaleproof.simulator.common.errors import ScaleproofError, one_line
from scaleproof.simulator.scenario import dump

if TYPE_CHECKING:
    import pandas as pd

STUDY_FILE: Final = "study.json"
PARTS: Final = "part-*.parquet"
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class StudyFolder:
    """The contents of a study folder. definition: study.json. axes: table columns that are not results. wrong: errors of
    points and their counts. notes: a sentence for each unreadable file."""

    definition: Mapping[str, Any]
    study: Study | None
    points: pd.DataFrame
    axes: tuple[str, ...]
    wrong: Mapping[str, int]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, study: Study | None, points: pd.DataFrame, definition: Mapping[str, Any], notes: Sequence[str] = ()
    ) -> StudyFolder:
        """The contents of a study with these points, which have all columns of results."""
        axes = tuple(str(name) for name in points.columns if name not in RESULTS and name != "point")
        wrong = points["error"].dropna().value_counts().to_dict()
        return cls(definition, study, points, axes, {str(text): int(count) for text, count in wrong.items()}, tuple(notes))

    @property
    def name(self) -> str:
        """Name of the study."""
        return str(self._at("name") or "study")

    @property
    def model_name(self) -> str:
        """Name of the model, by default that of the study."""
        return str(self._at("model", "name") or self.name)

    @property
    def model_kind(self) -> str:
        """Kind of the model, such as "gpt"."""
        return str(self._at("model", "kind"))

    @property
    def strategy_name(self) -> str:
        """Name of the strategy's family for readers."""
        return family_name(str(self._at("strategy", "kind")))

    @property
    def cluster_name(self) -> str:
        """Name of the cluster."""
        return str(self._at("cluster", "name"))

    def _at(self, *path: str) -> Any:
        """A value of the study's scenario; "" if it is missing."""
        value = self.definition.get("scenario")
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return "" if value is None else value

    def study_yaml(self) -> str:
        """The study as YAML, next to its scenario; "" if study.json cannot be read."""
        if self.study is None:
            return ""
        plain = {"scenario": dump.FILE, "axes": {axis.field: axis.plain() for axis in self.study.axes}}
        return dump.written(plain | ({"zip": self.definition["zip"]} if self.definition.get("zip") else {}))

    def scenario_yaml(self) -> str:
        """The scenario of all points as YAML; "" if study.json cannot be read."""
        return dump.written(self.definition["scenario"]) if self.study is not None else ""


def is_study(folder: Path) -> bool:
    """Whether a sweep has written to a folder."""
    return (folder / STUDY_FILE).is_file() or any(folder.glob(PARTS))


def read(folder: Path) -> StudyFolder:
    """Reads the parts of a study in a folder; each part may be absent."""
    notes: list[str] = []
    definition = _read_definition(folder, notes)
    study = _study(definition, notes)
    points = _points(folder, notes)
    if study is not None:
        outside = ~points["point"].between(0, len(study) - 1)
        lacking = [axis.column for axis in study.axes if axis.column not in points]
        if outside.any() or (lacking and len(points)):
            notes.append(f"the tables belong to another study than {STUDY_FILE}, which is ignored")
            study = None
    if study is not None and len(points) < len(study):
        notes.append(f"{len(points):,} of {len(study):,} points are complete; sweep --resume computes the others")
    return StudyFolder.of(study, points, definition, notes)


def _read_definition(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        plain = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{STUDY_FILE} is missing: the study is not known")
        return {}
    except _UNREADABLE as error:
        notes.append(f"{STUDY_FILE} cannot be read ({_reason(error)}): the study is not known")
        return {}
    return plain if isinstance(plain, dict) else {}


def _study(definition: Mapping[str, Any], notes: list[str]) -> Study | None:
    """The study of study.json; None, with a note, if it cannot be read."""
    if not definition:
        return None
    try:
        axes = {field: definition["axes"][field] for field in definition["order"]}
        return read_study({"scenario": definition["scenario"], "axes": axes, "zip": definition.get("zip", [])})
    except (*_UNREADABLE, ScaleproofError) as error:
        notes.append(f"{STUDY_FILE} is not a study that this version can predict ({_reason(error)})")
        return None


def _points(folder: Path, notes: list[str]) -> pd.DataFrame:
    """All readable rows by point, with all columns of results. Invalid numbers are missing values."""
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


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] if isinstance(error, ScaleproofError) else one_line(error)
