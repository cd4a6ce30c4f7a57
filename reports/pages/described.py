"""Pages of results that describe themselves in sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from scaleproof.reports import text
from scaleproof.reports.pages.sections import Page, PageSection, Sources, pictured
from scaleproof.reports.sections import Column, Description, Line, Section, Table, slug

# Number of letters from which a column of words may be wrapped.
_LONG: Final = 24


class Cell(NamedTuple):
    """A cell of a table on a page. small: what is below it. look: its class."""

    head: str
    text: str
    small: str
    look: str


class Group(NamedTuple):
    """Rows of a table below a title, which may be empty."""

    title: str
    rows: Sequence[Sequence[Cell]]


def page(
    found: Description,
    sheets: Mapping[str, str],
    sources: Sources,
    notes: Sequence[str] = (),
    more: Sequence[PageSection] = (),
    is_empty: bool = False,
) -> Page:
    """The page of a result. notes: on its folder. more: sections that follow its own."""
    lede = sentences(found.summary)
    headline = found.finding or found.title
    return Page(
        f"scaleproof · {found.title}",
        full_stop(headline),
        lede,
        found.figures,
        notes,
        [*page_sections(found.sections), *more],
        sheets,
        sources,
        is_empty,
    )


def page_sections(found: Iterable[Section]) -> list[PageSection]:
    """The sections of a page that show anything, with the contents of those of a result."""
    return [made for made in map(page_section, found) if _has_content(made)]


def page_section(found: Section) -> PageSection:
    """A section of a page with the contents of a section of a result."""
    return PageSection(
        slug(found.name),
        found.name,
        # a name stays as it is
        found.heading if found.heading.startswith(found.name) else capitalised(found.heading),
        found.intro,
        pictured(*found.charts()),
        before="described.html",
        after="described_end.html",
        data={"section": found},
        result=found.result,
    )


def _has_content(section: PageSection) -> bool:
    """Whether a section of a page shows anything."""
    found = section.data["section"]
    return bool(section.pictures or found.facts or found.tables or found.notes or found.code)


def groups(table: Table) -> list[Group]:
    """The rows of a table as pages show them, below the titles of their groups."""
    rows = _rows(table)
    if not table.groups:
        return [Group("", rows)]
    ends = accumulate((count for _, count in table.groups), initial=0)
    return [Group(title, rows[begin:end]) for (title, _), (begin, end) in zip(table.groups, pairwise(ends), strict=True)]


def _rows(table: Table) -> list[list[Cell]]:
    shown = shown_columns(table)
    below = {column.under: column for column in table.columns if column.under}
    count = len(table.columns[0].cells)
    return [[_cell(column, below.get(column.head), number) for column in shown] for number in range(count)]


def shown_columns(table: Table) -> list[Column]:
    """The columns of a table that are not below others."""
    return [column for column in table.columns if not column.under]


def _cell(column: Column, below: Column | None, number: int) -> Cell:
    small = below.cells[number] if below else ""
    grade = column.grades[number] if column.grades else ""
    return Cell(capitalised(column.head), column.cells[number], small, f"{look(column)} {grade}".strip())


def look(column: Column) -> str:
    """The class of the cells of a column: numbers, words, or texts of several words that may be wrapped."""
    if not column.is_text:
        return ""
    return "words long" if max(map(len, column.cells), default=0) > _LONG else "words"


def sentences(texts: Sequence[str]) -> str:
    """A paragraph."""
    return text.with_narrow_spaces(" ".join(map(sentence, texts)))


def known_facts(facts: Mapping[str, Sequence[Line]], is_drawn: bool) -> dict[str, list[Line]]:
    """The facts that are known. is_drawn: whether charts show what tables of shares do."""
    lines_by_name = {name: [line for line in lines if not (is_drawn and _has_shares(line))] for name, lines in facts.items()}
    return {name: lines for name, lines in lines_by_name.items() if lines}


def _has_shares(line: Line) -> bool:
    return not isinstance(line, str) and any(column.shares for column in line.columns)


def capitalised(words: str) -> str:
    """Words that begin with a capital letter."""
    return words[:1].upper() + words[1:]


def sentence(words: str) -> str:
    """Words with a capital letter and a full stop."""
    return full_stop(capitalised(words))


def full_stop(words: str) -> str:
    """Words with a full stop, unless they end in a sign already."""
    return words if words.endswith((".", ":", "!", "?")) else f"{words}."
