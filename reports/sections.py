"""The parts of which each result describes itself once. The console, pages and notebooks render them.

A description has a title, a finding, key figures and sections; a section has facts, tables, charts, notes and code. Texts are
those of the console: sentences begin with a small letter and have no full stop, which pages add.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scaleproof.reports.charts.chart import Chart


@dataclass(frozen=True)
class Column:
    """A column of a table, by its head. is_text: whether cells are words, which are aligned at the left. under: head of the
    column below whose cells pages print these, in small type. is_detail: whether only pages have it. shares: of 1, drawn as
    bars next to the cells. grades: of each cell, close, fair, off, failed or missing, which pages colour. most_letters: of a
    cell in consoles, 0 for all."""

    head: str
    cells: Sequence[str]
    is_text: bool = False
    under: str = ""
    is_detail: bool = False
    shares: Sequence[float] = ()
    grades: Sequence[str] = ()
    most_letters: int = 0


@dataclass(frozen=True)
class Table:
    """A table, whose first column names its rows. heading: where consoles print column heads, that of a first column without
    one.

    notes, below: sentences above and below it. groups: titles and numbers of consecutive rows, which pages show. brief:
    sentences in place of the table where there is little room, None if it is short. is_folded: whether pages show it on demand
    only. most_rows: number of rows that consoles print, 0 for all.
    """

    columns: Sequence[Column]
    heading: str = ""
    notes: Sequence[str] = ()
    below: Sequence[str] = ()
    groups: Sequence[tuple[str, int]] = ()
    brief: Sequence[str] | None = None
    is_folded: bool = False
    most_rows: int = 0

    @property
    def has_titles(self) -> bool:
        """Whether its columns have heads."""
        return any(column.head for column in self.columns)

    @property
    def titles(self) -> list[str]:
        """Heads of the columns that consoles have."""
        first, *others = [column.head for column in self.columns if not column.is_detail]
        return [first or self.heading, *others]

    def rows(self, is_detailed: bool = False) -> list[tuple[str, ...]]:
        """The cells of each row. is_detailed: with the columns that only pages have."""
        columns = [column.cells for column in self.columns if is_detailed or not column.is_detail]
        return list(zip(*columns, strict=True))


# A sentence, or a table below the facts before it.
Line = str | Table


@dataclass(frozen=True)
class Section:
    """A part of a description.

    name: in a table of contents. intro: how pages introduce it. facts: what is known, by name. charts: makes the charts, where
    they are drawn; brief: lines in their place. notes: sentences below tables and charts. code: lines of a file. result:
    what it finds, in a few words, for a table of contents. is_headed: whether consoles print the heading, too, as they do above
    code.
    """

    name: str
    heading: str
    intro: str = ""
    facts: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    charts: Callable[[], Sequence[Chart | None]] = lambda: ()
    brief: Sequence[str] = ()
    notes: Sequence[str] = ()
    code: Sequence[str] = ()
    result: str = ""
    is_headed: bool = False


@dataclass(frozen=True)
class Description:
    """What a result says. title: the subject. finding: the answer in a sentence. summary: sentences on how it was found.
    figures: key figures as numbers and their meanings. problem: why the result cannot take place, "" if it can; it comes
    first."""

    title: str
    finding: str = ""
    summary: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    problem: str = ""


def slug(name: str) -> str:
    """Text as a part of a portable file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "case"
