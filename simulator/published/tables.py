"""Tables of published measurements as CSV files, which may be compressed: reading them, and finding a row by its id."""

from __future__ import annotations

import csv
import difflib
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, NotFoundError, printable

Row = Mapping[str, str]

# End of the names of compressed tables.
_COMPRESSED: Final = ".gz"
# The tables whose rows are scenarios.
_RUNS: Final = ("transformer_training.csv", "fine_tuning.csv", "recommenders.csv", "vision.csv")
# Of a table: a million rows, more than anybody has measured.
_MAX_BYTES: Final = 64 * 2**20


class Cells(dict[str, str]):
    """A row by its columns; those that its table lacks are blank."""

    def __missing__(self, column: str) -> str:
        return ""


def folder() -> Path:
    """Where the tables are that ship."""
    return catalog.ROOT / "published"


def csv_files(place: Path) -> list[Path]:
    """CSV files in a folder, which may be compressed, sorted by name."""
    return sorted([*place.glob("*.csv"), *place.glob(f"*.csv{_COMPRESSED}")])


def find_table(place: Path) -> Path:
    """The path of a table, given by a path or by the name of one that ships."""
    named = [path for path in csv_files(folder()) if str(place) in (path.name, path.name.removesuffix(_COMPRESSED))]
    return named[0] if named and not place.exists() else place


def opened(path: Path, errors: str = "strict") -> io.StringIO:
    """The text of a CSV file; one whose name ends in .gz is decompressed. errors: see `bytes.decode`.

    Raises NotFoundError, InputError, or UnicodeDecodeError.
    """
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give the path of a CSV file")
    content = _decompressed(path) if path.suffix == _COMPRESSED else _first_bytes(path)
    if len(content) > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES >> 20} MiB; give a table of fewer rows")
    return io.StringIO(content.decode("utf-8-sig", errors), newline="")


def _first_bytes(path: Path) -> bytes:
    """The bytes of a file up to one more than a table may have."""
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _decompressed(path: Path) -> bytes:
    """The decompressed bytes of a file up to one more than a table may have."""
    # predictions do not read compressed tables
    import gzip
    import zlib

    try:
        with gzip.open(path) as file:
            return file.read(_MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be decompressed: {error}; give a CSV file, or one that gzip compressed") from None


def read_table(path: Path) -> tuple[Sequence[str], list[Cells]]:
    """Columns and rows of a CSV file; cells that a short row lacks are blank. Raises NotFoundError or InputError."""
    try:
        with opened(path) as file:
            reader = csv.DictReader(file, restval="")
            rows = [Cells({name: printable(cell.strip()) for name, cell in row.items() if name is not None}) for row in reader]
            return reader.fieldnames or (), rows
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from None


def find_row(reference: str) -> Row:
    """The training run of `published:ROW-ID` among the rows that ship. Raises NotFoundError."""
    number = reference.removeprefix(catalog.PUBLISHED)
    rows = _training_rows()
    if number not in rows:
        close = difflib.get_close_matches(number, rows, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"ids are in scenarios/published/{', '.join(_RUNS)}"
        raise NotFoundError(f"no published training run has the id {number!r}; {hint}")
    return rows[number]


@functools.cache
def _training_rows() -> dict[str, Cells]:
    return {row["id"]: row for table in _RUNS for row in read_table(folder() / table)[1]}
