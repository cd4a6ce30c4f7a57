"""Reads the folders that `reconcile`, `predict` and `measure` write. Unreadable files are noted and left out.

Nothing in the folder is trusted: files may be missing, cut short, or from someone else.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from pydantic import AllowInfNan, BaseModel, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Spans
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.run.explanation import Explanation
from scaleproof.simulator.run.files import SPANS_FILE, from_summary, load_spans
from scaleproof.simulator.run.run import Origin, Run
from scaleproof.simulator.scenario import dump

_VERSION: Final = 1
_UNREADABLE: Final = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
# a page contains the scenario twice
_MOST_SCENARIO_BYTES: Final = 2**20
_EXPLANATION: Final = TypeAdapter(Explanation)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Case:
    """One scenario, predicted and measured; either side may be missing. failure: why there is no measurement.

    inside: whether the measurement is in the prediction's 90 % interval, None without an interval. scenario_yaml: the predicted
    scenario, "" if it was not kept.
    """

    scenario: str
    family: str
    strategy: str
    ranks: int
    compute_ranks: int
    predicted: Run | None = None
    measured: Run | None = None
    failure: str | None = None
    folder: str = ""
    inside: bool | None = None
    explanation: Explanation | None = None
    scenario_yaml: str = ""

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured step time; None unless both are known."""
        if self.predicted is None or self.measured is None:
            return None
        return (self.predicted.step_time_s - self.measured.step_time_s) / self.measured.step_time_s

    @property
    def disturbed(self) -> str:
        """What disturbed the measurement or the calibration; empty if nothing did."""
        return next((run.disturbed for run in reversed(self.runs) if run.disturbed), "")

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that are known, predicted first."""
        return tuple(run for run in (self.predicted, self.measured) if run is not None)


@dataclass(frozen=True)
class Results:
    """The contents of a results folder. notes: a sentence for each unreadable file. max_error: the allowed relative error."""

    cases: tuple[Case, ...] = ()
    notes: tuple[str, ...] = ()
    created: str = ""
    host: str = ""
    cluster: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    max_error: float | None = None

    @property
    def compared(self) -> tuple[Case, ...]:
        """The cases that were both predicted and measured."""
        return tuple(case for case in self.cases if case.error is not None)

    @property
    def disturbed(self) -> tuple[Case, ...]:
        """Those among them that were disturbed, so that their errors do not count."""
        return tuple(case for case in self.compared if case.disturbed)

    @property
    def counted(self) -> tuple[Case, ...]:
        """Those among them whose errors count."""
        return tuple(case for case in self.compared if not case.disturbed)


class _CaseFile(BaseModel):
    scenario: str
    family: str = ""
    strategy: str = ""
    ranks: PositiveInt | None = None
    compute_ranks: PositiveInt | None = None
    predicted: Any = None
    measured: Any = None
    failure: str | None = None
    folder: str = ""
    inside: bool | None = None
    explanation: Any = None


class _ReconcileFile(BaseModel):
    version: int = _VERSION
    created: str = ""
    host: str = ""
    cluster: str = ""
    environment: dict[str, str] = {}
    max_error: Annotated[PositiveFloat, AllowInfNan(False)] | None = None
    cases: list[Any] = []


def read(folder: Path) -> Results:
    """Reads a results folder. Raises InputError if it does not exist or has no results."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give one that scaleproof predict, sweep or reconcile wrote with --out")
    if (folder / "reconcile.json").is_file():
        return _Reader(folder).reconciled()
    if has_runs(folder):
        return _Reader(folder).unreconciled(_case_folders(folder))
    if _is_bare(folder):
        return Results(notes=("the folder is empty",))
    raise InputError(
        f"{folder}: no results here; scaleproof predict, sweep, reconcile, measure, crossover or claims writes some with --out"
    )


def has_runs(folder: Path) -> bool:
    """Whether a folder has a predicted or measured run."""
    return (folder / "reconcile.json").is_file() or any(_holds_run(case_folder) for case_folder in _case_folders(folder))


def _case_folders(folder: Path) -> list[Path]:
    measured = (file.parents[1] for file in folder.glob("*/measured/run.json"))
    return [folder, *sorted(folder.glob("runs/*")), *sorted(measured)]


def _is_bare(folder: Path) -> bool:
    """Whether a folder is empty but for hidden files and an earlier page."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    return not names or names == {"index.html", "tables"}


def _holds_run(folder: Path) -> bool:
    return any((folder / part / "run.json").is_file() for part in ("", "predicted", "measured"))


class _Reader:
    """Reads one folder and collects notes on what it could not read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes: list[str] = []

    def reconciled(self) -> Results:
        """Results by reconcile.json with the spans of its cases, or by the case folders if it cannot be read."""
        try:
            plain = json.loads((self._folder / "reconcile.json").read_text(encoding="utf-8"))
        except _UNREADABLE as error:
            self._note("reconcile.json", error, "runs are taken from their folders")
            return self.unreconciled(sorted(self._folder.glob("runs/*")))
        file = self._checked(_ReconcileFile.model_validate, plain, "reconcile.json")
        if file is None:
            return self.unreconciled(sorted(self._folder.glob("runs/*")))
        if file.version != _VERSION:
            self._notes.append(f"reconcile.json has version {file.version}, this page reads version {_VERSION}")
        cases = [self._case(number, plain) for number, plain in enumerate(file.cases, start=1)]
        head = file.model_dump(exclude={"version", "cases"})
        return Results(cases=tuple(case for case in cases if case is not None), notes=tuple(self._notes), **head)

    def unreconciled(self, case_folders: list[Path]) -> Results:
        """Cases from run.json files alone, each in the case's folder or in its predicted/ and measured/."""
        cases = []
        for case_folder in case_folders:
            found = [self._stored_run(case_folder / part) for part in ("", "predicted", "measured")]
            sides: dict[Origin, Run] = {run.origin: run for run in found if run is not None}
            if sides:
                run = next(iter(sides.values()))
                family = run.strategy.partition(",")[0].strip()
                relative = case_folder.relative_to(self._folder).as_posix()
                case = Case(run.scenario, family, run.strategy, run.ranks, run.compute_ranks, folder=relative)
                case = replace(case, predicted=sides.get("predicted"), measured=sides.get("measured"))
                cases.append(replace(case, scenario_yaml=self._scenario_yaml(relative)))
        return Results(tuple(cases), tuple(self._notes))

    def _case(self, number: int, plain: Any) -> Case | None:
        file = self._checked(_CaseFile.model_validate, plain, f"reconcile.json: case {number}")
        if file is None:
            return None
        predicted, measured = (
            self._side(file, origin, plain) for origin, plain in (("predicted", file.predicted), ("measured", file.measured))
        )
        known = predicted or measured
        ranks = file.ranks or (known.ranks if known else 0)
        compute_ranks = file.compute_ranks or (known.compute_ranks if known else ranks)
        texts = file.scenario, file.family, file.strategy
        explanation = None
        if file.explanation is not None:
            explanation = self._checked(_EXPLANATION.validate_python, file.explanation, f"{file.scenario}: explanation")
        case = Case(*texts, ranks, compute_ranks, predicted, measured, file.failure, file.folder, file.inside, explanation)
        return replace(case, scenario_yaml=self._scenario_yaml(file.folder))

    def _scenario_yaml(self, name: str) -> str:
        """The scenario file next to the runs of a case; "" if it cannot be read."""
        path = self._folder / name / dump.FILE
        try:
            if not name or not _is_within(path, self._folder) or not path.is_file():
                return ""
            if path.stat().st_size > _MOST_SCENARIO_BYTES:
                raise ValueError(f"more than {format_bytes(_MOST_SCENARIO_BYTES)}")
            return path.read_text(encoding="utf-8")
        except _UNREADABLE as error:
            self._note(f"{name}/{dump.FILE}", error, "left out")
            return ""

    def _side(self, file: _CaseFile, origin: str, plain: Any) -> Run | None:
        """The run in reconcile.json, with the spans in the case's folder if they belong to it."""
        if plain is None:
            return None
        run = self._checked(from_summary, plain, f"{file.scenario}: {origin} summary")
        place = self._folder / file.folder / origin
        if run is None:
            return None
        if not _is_within(place, self._folder):
            self._notes.append(f"{file.scenario}: folder {file.folder[:80]!r} is not within the results; no timeline")
            return run
        stored = self._stored_run(place)
        if stored is None or stored.spans is None:
            return run
        if not math.isclose(stored.step_time_s, run.step_time_s, rel_tol=1e-9):
            self._notes.append(f"{file.folder}/{origin} belongs to another run than reconcile.json describes: no timeline")
            return run
        return replace(run, spans=stored.spans)

    def _stored_run(self, folder: Path) -> Run | None:
        """The run in `folder`, without spans if those cannot be read; None if there is no readable run."""
        if not (folder / "run.json").is_file():
            return None
        name = folder.relative_to(self._folder).as_posix()
        try:
            plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except _UNREADABLE as error:
            self._note(f"{name}/run.json", error, "left out")
            return None
        run = self._checked(from_summary, plain, f"{name}/run.json")
        try:
            return run and replace(run, spans=_spans(folder, plain))
        except _UNREADABLE as error:
            self._note(f"{name}/{SPANS_FILE}", error, "no timeline")
            return run

    def _checked(self, validate: Callable[[Any], _T], plain: Any, where: str) -> _T | None:
        """What `validate` makes of data from JSON; None, with a note, where it is not valid."""
        try:
            return validate(plain)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            reason = "not a mapping of fields" if first["type"] in ("model_type", "dataclass_type") else first["msg"].lower()
            self._notes.append(f"{where}: {place + ': ' if place else ''}{reason}; left out")
            return None

    def _note(self, where: str, error: Exception, consequence: str) -> None:
        reason = str(error).partition("\n")[0] or type(error).__name__
        self._notes.append(f"{where} cannot be read ({reason}); {consequence}")


def _is_within(place: Path, folder: Path) -> bool:
    try:
        return not place.exists() or place.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        # too long, not accessible, or a loop of links
        return False


def _spans(folder: Path, plain: Mapping[str, Any]) -> Spans | None:
    """The spans next to a run. Raises one of _UNREADABLE if they are truncated, of another run, or invalid."""
    spans = load_spans(folder, plain)
    if spans is None:
        return None
    columns = spans.columns().values()
    if any(column.shape != (len(spans),) for column in columns):
        raise ValueError("columns differ in length")
    if not all(np.isfinite(column).all() for column in columns):
        raise ValueError("a time is not finite")
    if len(spans) and (spans.phase.min() < 0 or spans.phase.max() >= len(Phase) or spans.rank.min() < 0):
        raise ValueError("unknown phase or rank")
    return spans
