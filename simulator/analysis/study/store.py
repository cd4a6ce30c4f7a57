"""The results of a study: tables in a folder that are only added to, with a description of the study, or rows in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.simulator.analysis.study.evaluate import RESULTS, TARGET_RESULTS, Row
from scaleproof.simulator.analysis.study.grid import Numbers
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, NotFoundError, one_line
from scaleproof.simulator.common.file_lock import locked_folder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

_STUDY: Final = "study.json"
_PARTS: Final = "part-*.parquet"
# number of differences that an error message lists
_NAMED: Final = 3


class Results:
    """The rows of a study's points: in tables of a folder, or in memory without one."""

    def __init__(self, study: Study, path: Path | None) -> None:
        self.study, self.path = study, path
        self._rows: list[Row] = []
        self._next = 1
        if path is not None:
            self._next += max((int(part.stem.partition("-")[2]) for part in _parts(path)), default=0)

    def todo(self) -> Numbers:
        """Numbers of the points that have no results."""
        points = np.arange(len(self.study))
        return points if self.path is None else np.setdiff1d(points, finished(self.path))

    def add(self, rows: Sequence[Row]) -> None:
        """Adds rows: in a folder as a new table, written atomically."""
        if self.path is None:
            self._rows += rows
            return
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        buffer = io.BytesIO()
        pq.write_table(_table_of(self.study, rows), buffer)
        write_atomically(self.path / f"part-{self._next:06d}.parquet", buffer.getvalue())
        self._next += 1

    def frame(self) -> pd.DataFrame:
        """One row per point that has results, in their order."""
        return _frame(_table_of(self.study, self._rows)) if self.path is None else table(self.path)


@contextmanager
def opened(path: Path | None, study: Study, intervals: bool, resume: bool) -> Iterator[Results]:
    """The results in a folder, which is locked against other sweeps, or in memory.

    Raises InputError where the folder contains other results, or results of this study and `resume` is not set.
    """
    if path is None:
        yield Results(study, None)
        return
    with locked_folder(path, "a sweep"):
        description = json.loads(json.dumps(_description(study, intervals), default=str))
        if (path / _STUDY).is_file():
            _check(path, description)
            if _parts(path) and not resume:
                raise InputError(
                    f"{path}: already contains results of this study; give --resume to continue, or another folder"
                )
        else:
            write_atomically(path / _STUDY, (json.dumps(description, indent=2) + "\n").encode())
        yield Results(study, path)


def table(path: str | Path) -> pd.DataFrame:
    """The results in a folder, one row per point in their order. Raises NotFoundError for a folder without results."""
    import pyarrow as pa

    parts = _parts(Path(path))
    if not parts:
        raise NotFoundError(f"{path}: no results of a study; give the folder that sweep --out wrote")
    return _frame(pa.concat_tables(_read(part) for part in parts))


def finished(path: Path) -> Numbers:
    """Numbers of the points that have results in a folder."""
    parts = [_read(part, ["point"])["point"].to_numpy() for part in _parts(path)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _frame(rows: pa.Table) -> pd.DataFrame:
    """The table as a data frame, sorted by point."""
    result: pd.DataFrame = rows.sort_by("point").to_pandas()
    return result


def _table_of(study: Study, rows: Sequence[Row]) -> pa.Table:
    """A table of rows with the values of their axes."""
    import pyarrow as pa

    points = np.array([row["point"] for row in rows], dtype=np.int64)
    columns: dict[str, Any] = {"point": pa.array(points)}
    for axis, places in zip(study.axes, study.places(points).T, strict=True):
        columns[axis.column] = pa.array(axis.table_values, _type_of(axis.table_values)).take(pa.array(places))
    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    for name, (kind, _) in {**RESULTS, **(TARGET_RESULTS if study.has_target else {})}.items():
        # an axis of frameworks already has their names in this column
        if name not in columns:
            columns[name] = pa.array([row.get(name) for row in rows], types[kind])
    return pa.table(columns)


def _type_of(values: Sequence[Any]) -> pa.DataType:
    import pyarrow as pa

    given = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in given):
        return pa.bool_()
    if all(isinstance(value, int) for value in given):
        return pa.int64()
    return pa.float64() if all(isinstance(value, int | float) for value in given) else pa.string()


def _parts(path: Path) -> list[Path]:
    return sorted(path.glob(_PARTS))


def _read(part: Path, columns: list[str] | None = None) -> pa.Table:
    """A table of results, or some of its columns. Raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(part, columns=columns)
    except (OSError, pa.ArrowException) as error:
        reason = f"{part}: cannot be read ({one_line(error)})"
        raise InputError(f"{reason}; delete it, and sweep with --resume computes its points again") from None


def _description(study: Study, intervals: bool) -> dict[str, Any]:
    """Everything that the results depend on."""
    try:
        own = version("scaleproof")
    except PackageNotFoundError:
        own = "not installed"
    return {"version": own, "intervals": intervals, **study.plain()}


def _check(path: Path, description: Any) -> None:
    """Raises InputError where the folder's results are of another study, version or option."""
    try:
        stored = json.loads((path / _STUDY).read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path / _STUDY}: cannot be read; choose another folder") from None
    different = list(_differences("", stored, description))
    if different:
        more = f", and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
        message = f"{path}: contains other results: {'; '.join(different[:_NAMED])}{more}; choose another folder"
        raise InputError(message)


def _differences(field: str, there: Any, here: Any) -> Iterator[str]:
    """Descriptions of all differences, such as 'strategy.workers is 4 there, 8 here'."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):
            yield from _differences(f"{field}.{key}".lstrip("."), there.get(key), here.get(key))
    elif there != here:
        yield f"{field} is {_short(there)} there, {_short(here)} here"


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
