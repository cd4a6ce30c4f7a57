"""Folder: where a study's results are kept: what was asked, and tables that are only ever added to."""

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
from scaleproof.simulator.analysis.study.study import Numbers, Study
from scaleproof.simulator.common.errors import InputError, NotFoundError
from scaleproof.simulator.common.file_lock import locked_folder
from scaleproof.simulator.run.run import write_aside

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

_ASKED: Final = "study.json"
_PARTS: Final = "part-*.parquet"
# differences that are named of those that there are
_NAMED: Final = 3


class Folder:
    """A study's results. Of a point that is in a table nothing is computed again."""

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study
        numbers = [int(part.stem.partition("-")[2]) for part in path.glob(_PARTS)]
        self._next = 1 + max(numbers, default=0)

    def done(self) -> Numbers:
        """Numbers of the points that are there."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        parts = [pq.read_table(part, columns=["point"])["point"].to_numpy() for part in _parts(self.path)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def add(self, rows: Sequence[Row]) -> None:
        """Writes a table of its own, whole or not at all."""
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(table_of(self.study, rows), buffer)
        write_aside(self.path / f"part-{self._next:06d}.parquet", buffer.getvalue())
        self._next += 1


@contextmanager
def opened(path: Path, study: Study, intervals: bool, resume: bool) -> Iterator[Folder]:
    """The folder, which no other sweep writes to meanwhile. Raises InputError where it holds something else."""
    with locked_folder(path, "a sweep"):
        asked = json.loads(json.dumps(_asked(study, intervals), default=str))
        if (path / _ASKED).is_file():
            _check(path, asked)
            if _parts(path) and not resume:
                raise InputError(f"{path}: holds results of this study already; give --resume to go on, or another folder")
        else:
            write_aside(path / _ASKED, (json.dumps(asked, indent=2) + "\n").encode())
        yield Folder(path, study)


def table(path: str | Path) -> pd.DataFrame:
    """The results in a folder, a row for each point in their order. Raises NotFoundError where there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = _parts(Path(path))
    if not parts:
        raise NotFoundError(f"{path}: no results of a study; give the folder that sweep --out wrote")
    return frame(pa.concat_tables(pq.read_table(part) for part in parts))


def frame(found: pa.Table) -> pd.DataFrame:
    """A table for people to go on with, by point."""
    result: pd.DataFrame = found.sort_by("point").to_pandas()
    return result


def table_of(study: Study, rows: Sequence[Row]) -> pa.Table:
    """Rows with the values of their axes."""
    import pyarrow as pa

    points = np.array([row["point"] for row in rows], dtype=np.int64)
    columns: dict[str, Any] = {"point": pa.array(points)}
    for axis, places in zip(study.axes, study.places(points).T, strict=True):
        columns[axis.column] = pa.array(axis.told, _type_of(axis.told)).take(pa.array(places))
    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    for name, (kind, _) in {**RESULTS, **(TARGET_RESULTS if study.has_target else {})}.items():
        # an axis over frameworks has what they are called
        if name not in columns:
            columns[name] = pa.array([row.get(name) for row in rows], types[kind])
    return pa.table(columns)


def _type_of(told: Sequence[Any]) -> pa.DataType:
    import pyarrow as pa

    given = [value for value in told if value is not None]
    if all(isinstance(value, bool) for value in given):
        return pa.bool_()
    if all(isinstance(value, int) for value in given):
        return pa.int64()
    return pa.float64() if all(isinstance(value, int | float) for value in given) else pa.string()


def _parts(path: Path) -> list[Path]:
    return sorted(path.glob(_PARTS))


def _asked(study: Study, intervals: bool) -> dict[str, Any]:
    """All that results follow from."""
    try:
        own = version("scaleproof")
    except PackageNotFoundError:
        own = "not installed"
    return {"version": own, "intervals": intervals, **study.plain()}


def _check(path: Path, asked: Any) -> None:
    """Raises InputError where the folder's results are of something else."""
    try:
        there = json.loads((path / _ASKED).read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path / _ASKED}: cannot be read; choose another folder") from None
    unlike = list(_differences("", there, asked))
    if unlike:
        more = f", and {len(unlike) - _NAMED} more" if len(unlike) > _NAMED else ""
        raise InputError(f"{path}: holds results of something else: {'; '.join(unlike[:_NAMED])}{more}; choose another folder")


def _differences(field: str, there: Any, here: Any) -> Iterator[str]:
    """'strategy.workers is 4 there, 8 here'."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):
            yield from _differences(f"{field}.{key}".lstrip("."), there.get(key), here.get(key))
    elif there != here:
        yield f"{field} is {_short(there)} there, {_short(here)} here"


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
