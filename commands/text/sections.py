"""Console text of results that describe themselves in sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scaleproof.commands.text.tables import SHARE_WIDTHS, bar, sections, table, wrapped
from scaleproof.reports.sections import Description, Line, Section, Table


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


def table_lines(one: Table) -> list[str]:
    """Lines of a table, with bars for shares."""
    columns = [column for column in one.columns if not column.is_detail]
    align = "".join("<" if column.is_text else ">" for column in columns)
    titles = [[column.head for column in columns]] if one.has_titles else []
    shares = next((column.shares for column in columns if column.shares), None)
    if shares is None:
        return table([*titles, *one.rows()], align)
    return table([(*row, bar(share)) for row, share in zip(one.rows(), shares, strict=True)], f"{align}<", SHARE_WIDTHS, gap=1)


def _lines(lines: Iterable[Line]) -> Iterator[str]:
    for line in lines:
        yield from [line] if isinstance(line, str) else table_lines(line)


def _wrapped(sentences: Iterable[str]) -> list[str]:
    return [line for sentence in sentences for line in wrapped(sentence)]
