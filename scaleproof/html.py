"""Results in HTML, as notebooks show them. All styles are in the elements, since notebooks drop style sheets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from scaleproof.reports.sections import Description, Line, Section, Table

_MOST_ROWS: Final = 12
_WARNING: Final = "color:#b3261e;font-weight:bold"
_CELL: Final = "text-align:left;padding:2px 12px 2px 0;vertical-align:top;white-space:nowrap;"


def described(found: Description) -> str:
    """A result: its finding, facts, shares as bars, and the first rows of the tables that are short enough for a console."""
    problem = [f'<div style="{_WARNING}">{escape(found.problem)}</div>'] if found.problem else []
    tables = [one for section in found.sections for one in section.tables if one.brief is None]
    return page(found.finding or found.title, *problem, _facts(found.sections), *map(_table, tables))


def page(title: str, *parts: str) -> str:
    """A result: its title in bold, and parts in HTML below it."""
    return f'<div style="max-width:60em"><b>{escape(title)}</b>{"".join(parts)}</div>'


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with titles."""
    head = _row(_cell(escape(title), "th") for title in titles)
    body = "".join(_row(_cell(escape(text)) for text in row) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _facts(sections: Iterable[Section]) -> str:
    """A table of the facts of all sections."""
    rows = [
        _row([_cell(escape(name)), _cell("<br>".join(map(_line, lines)), look="white-space:normal")])
        for section in sections
        for name, lines in section.facts.items()
        if lines
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _line(line: Line) -> str:
    return escape(line) if isinstance(line, str) else _table(line)


def _table(one: Table) -> str:
    """A table, without the columns that only pages have; a bar with its legend for shares."""
    shares = next((column.shares for column in one.columns if column.shares), None)
    if shares is not None and not one.has_titles:
        return _bar(one.rows(), shares)
    notes = "".join(f"<div>{escape(note)}</div>" for note in one.notes)
    return notes + table(one.titles if one.has_titles else [], one.rows()[:_MOST_ROWS])


def _bar(rows: Sequence[Sequence[str]], shares: Sequence[float]) -> str:
    """A bar of parts, and its legend."""
    from scaleproof.reports.charts.style import CAUSE_COLOURS, GREY

    boxes, legend = [], []
    for (name, *amounts), share in zip(rows, shares, strict=True):
        colour = CAUSE_COLOURS.get(name.replace(" ", "_"), GREY)
        boxes.append(f'<div title="{escape(name)}" style="width:{100 * max(0.0, share):.2f}%;background:{colour}"></div>')
        legend.append(f'<span style="color:{colour}">&#9632;</span> {escape(" ".join([name, *amounts]))}')
    bar = f'<div style="display:flex;height:14px;max-width:40em">{"".join(boxes)}</div>'
    return f'{bar}<div style="font-size:90%">{" &nbsp; ".join(legend)}</div>'


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(content: str, tag: str = "td", look: str = "") -> str:
    return f'<{tag} style="{_CELL}{look}">{content}</{tag}>'
