"""Tables of measured kernel times: one row for each kernel, with the columns of scenarios/published/gpu_kernels.csv.gz.

`read` keeps rows that cannot be used, with the reason; `check` refuses a table that has some.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, printable
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.published.tables import find_table, folder, opened
from scaleproof.validator.kernels.attention import IMPLEMENTATION, AttentionShapes
from scaleproof.validator.kernels.mixture import MixtureShapes
from scaleproof.validator.kernels.products import ProductShapes
from scaleproof.validator.kernels.shapes import Floats, Mask

Texts = NDArray[np.str_]
Indices = NDArray[np.int64]
_Shapes = TypeVar("_Shapes", ProductShapes, AttentionShapes, MixtureShapes)

PRODUCT: Final = "gemm"
ATTENTION: Final = "attention_forward"
MIXTURE: Final = "moe_forward"
TIME: Final = "latency_us"
# Columns that describe the shape of each kind.
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
    PRODUCT: ("m", "n", "k"),
    ATTENTION: ("batch", "seq", "heads", "kv_heads", "head_dim"),
    MIXTURE: ("tokens", "hidden", "inter", "experts", "topk", "moe_tp", "moe_ep", "routing"),
}
# Number formats of operands, as tables name them.
PRECISIONS: Final = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp4")
# Columns of a written table, in order; those of shapes may be missing if no row is of their kind.
COLUMNS: Final = (
    "system", "gpu", "kind", "precision", *itertools.chain.from_iterable(SHAPES.values()), "implementation", "direction", TIME,
    "source",
)  # fmt: skip
_REQUIRED: Final = ("kind", "precision", TIME)
_ROUTING: Final = "routing"
_BALANCED: Final = "balanced"
# Columns of shapes whose blank cells have a usual value.
_USUAL: Final = ("kv_heads", "moe_tp", "moe_ep", _ROUTING)
_IMPLEMENTATION: Final = "implementation"
# Directions of passes of attention; rows without one are forward passes.
_DIRECTION: Final = "direction"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
# Names of implementations of attention; those in files of frameworks with another meaning are not among them.
_NAMES: Final = re.compile(r"(?!(none|best)$)[a-z0-9][a-z0-9._-]{0,63}")
_ROUTINGS: Final = re.compile(r"balanced|power_law_\d{1,3}(\.\d{1,3})?")
# Columns of each row but for its sizes.
_COLUMNS_OF_ROWS: Final = ("lines", "gpu", "kind", "precision", "routing", "implementation", "direction", "measured_s")
# Largest sizes, far beyond any kernel, and the longest time in microseconds, an hour.
_MOST: Final = 1e9
_LONGEST_US: Final = 3.6e9
# Number of rows that an error names.
_NAMED_ROWS: Final = 3
_NAME: Final = "gpu_kernels.csv.gz"


class Problem(NamedTuple):
    """Why a row cannot be used. reason: in general; cell: the text that is wrong; remedy: what to write instead."""

    reason: str
    cell: str
    remedy: str

    @property
    def text(self) -> str:
        """The reason with the cell."""
        return f"{self.reason}, got {self.cell!r}" if self.cell else self.reason


@dataclass(frozen=True)
class KernelTable:
    """Rows of a table as columns, each of shape (rows,). lines: of each row in the file. sizes: by column, NaN where blank.
    implementation, direction: of attention; empty in rows of other kinds. problems: by index, of rows that cannot be used."""

    path: Path
    lines: Indices
    gpu: Texts
    kind: Texts
    precision: Texts
    routing: Texts
    implementation: Texts
    direction: Texts
    sizes: Mapping[str, Floats]
    measured_s: Floats
    problems: Mapping[int, Problem]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def usable(self) -> Mask:
        """Whether each row can be used."""
        usable = np.ones(len(self), dtype=np.bool_)
        usable[list(self.problems)] = False
        return usable

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs of rows that can be used, in order."""
        return _distinct(self.gpu[self.usable])

    def precisions(self, kind: str) -> list[str]:
        """Precisions of a kind's rows that can be used, in order."""
        return _distinct(self.precision[self.usable & (self.kind == kind)])

    def subset(self, mask: Mask) -> Self:
        """The rows in which the mask is true."""
        kept = np.flatnonzero(mask)
        columns = {name: getattr(self, name)[kept] for name in _COLUMNS_OF_ROWS}
        problems = {new: self.problems[old] for new, old in enumerate(kept.tolist()) if old in self.problems}
        sizes = {name: column[kept] for name, column in self.sizes.items()}
        return replace(self, **columns, sizes=sizes, problems=problems)

    def of_gpu(self, gpu: str) -> Self:
        """The rows of a GPU."""
        return self.subset(self.gpu == gpu)

    def implementations(self) -> list[str]:
        """Implementations of attention of rows that can be used, in order."""
        return _distinct(self.implementation[self.rows(ATTENTION)])

    @property
    def _names(self) -> tuple[Texts, ...]:
        """Columns of text by which rows differ."""
        return self.gpu, self.kind, self.precision, self.routing, self.implementation, self.direction

    def rows(self, kind: str, precision: str | None = None) -> Mask:
        """Whether each row can be used and is of a kind, and of a precision if it is given."""
        mask: Mask = self.usable & (self.kind == kind)
        return mask if precision is None else mask & (self.precision == precision)

    def products(self, precision: str) -> ProductShapes:
        """The matrix products in a precision."""
        return self._shapes(ProductShapes, self.rows(PRODUCT, precision))

    def attentions(self, precision: str | None = None) -> AttentionShapes:
        """The passes of causal attention, in a precision if it is given."""
        return self._shapes(AttentionShapes, self.rows(ATTENTION, precision))

    def mixtures(self, precision: str) -> MixtureShapes:
        """The mixtures of experts in a precision."""
        return self._shapes(MixtureShapes, self.rows(MIXTURE, precision))

    def _shapes(self, of: Callable[..., _Shapes], mask: Mask) -> _Shapes:
        columns: dict[str, Any] = {**self.sizes, _ROUTING: self.routing, "measured_s": self.measured_s}
        columns[BACKWARD] = self.direction == BACKWARD
        return of(**{field.name: columns[field.name][mask] for field in dataclasses.fields(of)})  # type: ignore[arg-type]

    def shape_texts(self) -> list[str]:
        """The shape of each row as text, such as 'm=512 n=1024 k=512'; empty if the kind is unknown."""
        texts = np.full(len(self), "", dtype=object)
        for kind, names in SHAPES.items():
            where = np.flatnonzero(self.kind == kind)
            cells = [self._texts(name, where) for name in names]
            for at, row in zip(where.tolist(), zip(*cells, strict=True), strict=True):
                texts[at] = " ".join(row)
        return list(texts)

    def _texts(self, name: str, where: Indices) -> list[str]:
        if name == _ROUTING:
            return [str(routing) for routing in self.routing[where]]
        return [f"{name}={size:.0f}" for size in self.sizes[name][where].tolist()]

    def merged(self) -> tuple[Self, int]:
        """The usable rows, of which those that differ in their times alone are one row with the median time; and the number of
        rows that repeat another."""
        rows = self.subset(self.usable)
        if not len(rows):
            return rows, 0
        texts = [np.unique(column, return_inverse=True)[1] for column in rows._names]
        key = np.column_stack([*texts, *(np.nan_to_num(column, nan=-1.0) for column in rows.sizes.values())])
        _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
        order = np.lexsort((rows.measured_s, group.ravel()))
        counts = np.bincount(group.ravel())
        begins = np.cumsum(counts) - counts
        sorted_s = rows.measured_s[order]
        medians_s = (sorted_s[begins + (counts - 1) // 2] + sorted_s[begins + counts // 2]) / 2
        kept = np.sort(first)
        merged = rows.subset(np.isin(np.arange(len(rows)), kept))
        return replace(merged, measured_s=medians_s[np.argsort(first)]), len(rows) - len(kept)


def shipped() -> Path:
    """The table of measured kernel times that ships."""
    return folder() / _NAME


def read(path: Path, gpu: str = "", attention: str = IMPLEMENTATION) -> KernelTable:
    """Reads a table, given by its path or by the name of one that ships. gpu: name of the GPU of rows without one.
    attention: implementation of attention of rows without one.

    Raises NotFoundError or InputError if there is no such file, if it is no CSV, or if it lacks columns or rows.
    """
    path = find_table(path)
    columns, lines, rows = _cells(path)
    if not lines and columns:
        raise InputError(f"{path}: no rows below its columns; give at least one")
    return _table(path, columns, lines, rows, gpu, attention)


def of_rows(rows: Sequence[Mapping[str, str | float]]) -> KernelTable:
    """A table of rows by the names of `COLUMNS`, as `write` takes them. Raises InputError if they lack columns."""
    cells = [tuple(str(row.get(name, "")) for row in rows) for name in COLUMNS]
    return _table(Path("table"), COLUMNS, list(range(1, len(rows) + 1)), cells)


def _table(
    path: Path,
    columns: Sequence[str],
    lines: Sequence[int],
    rows: Sequence[tuple[str, ...]],
    gpu: str = "",
    attention: str = IMPLEMENTATION,
) -> KernelTable:
    """The table of cells by column. gpu, attention: names of the GPU and the implementation of rows without one."""
    cells = {name: [cell.strip() for cell in column] for name, column in zip(columns, rows, strict=True) if name in COLUMNS}
    if missing := [name for name in _REQUIRED if name not in cells]:
        raise InputError(f"{path}:1: no column {', '.join(missing)}; a table of kernels needs kind, precision and {TIME}")
    for kind_name, names in SHAPES.items():
        needed = [name for name in names if name not in _USUAL]
        if kind_name in cells["kind"] and (missing := [name for name in needed if name not in cells]):
            raise InputError(f"{path}:1: no column {', '.join(missing)}; rows of {kind_name} need {', '.join(needed)}")
    blank = [""] * len(lines)
    kind, precision = (np.array(cells[name]) for name in ("kind", "precision"))
    routing = np.array([text or _BALANCED for text in cells.get(_ROUTING, blank)])
    versions = np.array([text or attention for text in cells.get(_IMPLEMENTATION, blank)])
    directions = np.array([text or FORWARD for text in cells.get(_DIRECTION, blank)])
    sizes = {name: _numbers(cells.get(name, blank)) for names in SHAPES.values() for name in names if name != _ROUTING}
    _fill(sizes, kind)
    measured_us = _numbers(cells[TIME])
    table = KernelTable(
        path, np.array(lines), np.array([printable(name) or gpu for name in cells.get("gpu", blank)]), kind, precision, routing,
        np.where(kind == ATTENTION, versions, ""), np.where(kind == ATTENTION, directions, ""), sizes, measured_us * 1e-6, {},
    )  # fmt: skip
    return replace(table, problems=dict(reversed(list(_problems(table, cells)))))


def _cells(path: Path) -> tuple[list[str], list[int], list[tuple[str, ...]]]:
    """Names of the columns, the line of each row, and the cells of each column."""
    lines, rows = [], []
    try:
        with opened(path) as file:
            reader = csv.reader(file)
            columns = [name.strip() for name in next(reader, [])]
            for row in reader:
                if row:
                    lines.append(reader.line_num)
                    rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from None
    # cells that a short row lacks are blank, those that a long row has in addition are left out
    by_column = list(itertools.zip_longest(*rows, fillvalue=""))[: len(columns)]
    by_column += [("",) * len(rows)] * (len(columns) - len(by_column))
    return columns, lines, by_column


def _numbers(cells: Sequence[str]) -> Floats:
    """Cells as numbers; NaN where they are none. Values repeat, so that each text is parsed once."""
    parsed = {text: _number(text) for text in set(cells)}
    return np.array([parsed[text] for text in cells], dtype=np.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _fill(sizes: dict[str, Floats], kind: Texts) -> None:
    """Fills blank cells that have a usual value: as many key heads as heads, and no division of the experts."""
    blank = np.isnan(sizes["kv_heads"])
    sizes["kv_heads"] = np.where(blank, sizes["heads"], sizes["kv_heads"])
    for name in ("moe_tp", "moe_ep"):
        sizes[name] = np.where(np.isnan(sizes[name]) & (kind == MIXTURE), 1.0, sizes[name])


def _problems(table: KernelTable, cells: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, Problem]]:
    """Problems by row, the most important ones of a row first."""

    def wrong(mask: Mask, column: str, reason: str, remedy: str) -> Iterator[tuple[int, Problem]]:
        given = cells.get(column)
        for row in np.flatnonzero(mask).tolist():
            yield row, Problem(reason, given[row] if given else "", remedy)

    if "gpu" not in cells or not table.gpu.all():
        yield from wrong(table.gpu == "", "gpu", "no GPU", "name it in the column gpu")
    kinds, precisions = ", ".join(SHAPES), ", ".join(PRECISIONS)
    yield from wrong(~np.isin(table.kind, list(SHAPES)), "kind", "unknown kind", f"give one of {kinds}")
    yield from wrong(~np.isin(table.precision, PRECISIONS), "precision", "unknown precision", f"give one of {precisions}")
    yield from wrong(
        ~(np.isfinite(table.measured_s) & (table.measured_s > 0) & (table.measured_s <= _LONGEST_US * 1e-6)),
        TIME,
        f"{TIME} is not a number of microseconds above zero",
        "correct it, or remove the row",
    )
    for kind, names in SHAPES.items():
        of_kind = table.kind == kind
        for name in names:
            if name != _ROUTING:
                size = table.sizes[name]
                valid = (size >= 1) & (size <= _MOST) & (size == np.floor(size))
                yield from wrong(of_kind & ~valid, name, f"{name} is not a whole number above zero", "correct it")
    strange = sorted(text for text in set(table.routing.tolist()) if not _ROUTINGS.fullmatch(text))
    unknown = (table.kind == MIXTURE) & np.isin(table.routing, strange)
    yield from wrong(unknown, _ROUTING, "unknown routing", "give balanced, or power_law_ with its exponent, such as 1.2")
    nameless = sorted(text for text in set(table.implementation.tolist()) if not _NAMES.fullmatch(text))
    unnamed = (table.kind == ATTENTION) & np.isin(table.implementation, nameless)
    yield from wrong(
        unnamed, _IMPLEMENTATION, "no name of an implementation of attention", "give one such as flash-2, flash-3 or cudnn"
    )
    aimless = (table.kind == ATTENTION) & ~np.isin(table.direction, (FORWARD, BACKWARD))
    yield from wrong(aimless, _DIRECTION, "unknown direction", f"give {FORWARD} or {BACKWARD}")
    heads, shared = table.sizes["heads"], table.sizes["kv_heads"]
    with np.errstate(invalid="ignore", divide="ignore"):
        uneven = (table.kind == ATTENTION) & (np.mod(heads, shared) != 0)
    yield from wrong(uneven, "kv_heads", "kv_heads does not divide heads", "give a number of key heads that divides the heads")


def check(table: KernelTable) -> None:
    """Raises InputError, with file and line, if a row of the table cannot be used."""
    lines = [
        f"{table.path}:{table.lines[row]}: {problem.text}; {problem.remedy}"
        for row, problem in sorted(table.problems.items())[:_NAMED_ROWS]
    ]
    if more := len(table.problems) - len(lines):
        lines.append(f"and {counted(more, 'more row')} that cannot be used")
    if lines:
        raise InputError("\n".join(printable(line) for line in lines))


def write(rows: Iterable[Mapping[str, str | float]], path: Path) -> None:
    """Writes rows, by the names of `COLUMNS`, as a table, atomically. Columns that no row has are left out."""
    given = list(rows)
    columns = [name for name in COLUMNS if any(name in row for row in given)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(given)
    write_atomically(path, text.getvalue().encode())


def _distinct(texts: Texts) -> list[str]:
    return list(dict.fromkeys(texts.tolist()))
