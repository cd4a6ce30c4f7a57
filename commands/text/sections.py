"""Console text of results that describe themselves in sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from scaleproof.commands.text.tables import SHARE_WIDTHS, bar, sections, table, wrapped
from scaleproof.reports.sections import Description, Line, Section, Table
from scaleproof.simulator.common.units import counted

# of a bar in a table with titles
_BAR_WIDTH: Final = 10


def described(found: Description, more: Iterable[str] = ()) -> str:
    """Console text of a result: its title and summary, then its sections, with an empty line around each table and each piece
    of code. more: paragraphs at the end."""
    paragraphs = [[*_wrapped([found.problem] if found.problem else []), found.title, *_wrapped(found.summary)]]
    for section in found.sections:
        _add(section, paragraphs)
    return "\n\n".join("\n".join(lines) for lines in (*paragraphs, *map(wrapped, more)) if lines)


def facts_text(parts: Iterable[Section]) -> list[str]:
    """Lines of the facts of sections, with their names in front."""
    return sections({name: _lines(lines) for part in parts for name, lines in part.facts.items()})


def by_section(found: Description) -> str:
    """Console text of a result, with an empty line between sections, whose contents are indented."""
    paragraphs = [[found.title], *map(section_lines, found.sections)]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def section_lines(section: Section, indent: str = "  ") -> list[str]:
    """Lines of a section, indented below its heading if that is printed."""
    lines = [*([section.heading] if section.is_headed else []), *facts_text([section])]
    for one in section.tables:
        lines += _wrapped(one.brief, indent) if one.brief is not None else table_lines(one, indent)
    return [*lines, *_wrapped([*section.brief, *section.notes], indent)]


def _add(section: Section, paragraphs: list[list[str]]) -> None:
    """Adds a section to paragraphs; the last one is open for more lines."""
    paragraphs[-1] += facts_text([section])
    for one in section.tables:
        if one.brief is None:
            paragraphs += [[*_wrapped(one.notes), *table_lines(one)], []]
        else:
            paragraphs[-1] += _wrapped(one.brief)
    paragraphs[-1] += _wrapped([*section.brief, *section.notes])
    if section.code:
        code = (f"  {line}" for text in section.code for line in text.splitlines())
        paragraphs += [[f"{section.heading}:", *code], []]


def table_lines(one: Table, indent: str = "") -> list[str]:
    """Lines of a table and of what is below it, with bars for shares. Rows that are too many are counted."""
    columns = [column for column in one.columns if not column.is_detail]
    align = "".join("<" if column.is_text else ">" for column in columns)
    shares = next((column.shares for column in columns if column.shares), None)
    if shares is not None and not one.has_titles:
        cells = ((*row, bar(share)) for row, share in zip(one.rows(), shares, strict=True))
        return table(cells, f"{align}<", SHARE_WIDTHS, gap=1, indent=indent)
    # rows below the heading of the table are indented
    inner = "" if one.titles[0] == columns[0].head else "  "
    titles = one.titles
    rows = [[_cut(cell, column.most_letters) for cell, column in zip(row, columns, strict=True)] for row in one.rows()]
    if shares is not None:
        titles, align = [*titles, ""], f"{align}<"
        rows = [[*row, bar(share, _BAR_WIDTH)] for row, share in zip(rows, shares, strict=True)]
    shown = [[f"{inner}{name}", *others] for name, *others in (rows[: one.most_rows] if one.most_rows else rows)]
    lines = table([titles, *shown] if one.has_titles else shown, align, indent=indent)
    if more := len(rows) - len(shown):
        noun = columns[0].head or "row"
        lines.append(f"{indent}{inner}and {counted(more, f'more {noun}')}, see --json")
    return [*lines, *_wrapped(one.below, indent)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= (most or len(text)) else f"{text[: most - 1]}…"


def _lines(lines: Iterable[Line]) -> Iterator[str]:
    for line in lines:
        yield from [line] if isinstance(line, str) else table_lines(line)


def _wrapped(sentences: Iterable[str], indent: str = "") -> list[str]:
    return [line for sentence in sentences for line in wrapped(sentence, indent, f"{indent}  ")]
