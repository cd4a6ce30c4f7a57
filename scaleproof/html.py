"""Small tables in HTML, as notebooks show results. All styles are in the elements, since notebooks drop style sheets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from scaleproof.reports.sections import Description, Table
from scaleproof.simulator.common.units import format_percent, format_time_s
from scaleproof.simulator.run.run import BREAKDOWN, Run

_MOST_ROWS: Final = 10
_MIN_SHARE: Final = 5e-4
_WARNING: Final = "color:#b3261e;font-weight:bold"
_CELL: Final = "text-align:left;padding:2px 12px 2px 0;vertical-align:top;white-space:nowrap;"


def page(title: str, *parts: str) -> str:
    """A result: its title in bold, and parts in HTML below it."""
    look = f' style="{_WARNING}"' if title.startswith("OUT OF MEMORY") else ""
    return f'<div style="max-width:60em"><b{look}>{escape(title)}</b>{"".join(parts)}</div>'


def described(found: Description) -> str:
    """A result: its finding, the tables that are short enough for a console, and the first rows of these."""
    tables = [one for section in found.sections for one in section.tables if one.brief is None]
    return page(found.finding or found.title, *map(_table, tables))


def _table(one: Table) -> str:
    """A table, without the columns that only pages have."""
    titles = [column.head for column in one.columns if not column.is_detail]
    notes = "".join(f"<div>{escape(note)}</div>" for note in one.notes)
    return notes + table(titles, one.rows()[:_MOST_ROWS])


def facts(texts: Mapping[str, str], is_warning: bool = False) -> str:
    """A table of names and texts. is_warning: whether the memory does not suffice."""
    rows = []
    for name, text in texts.items():
        look = _WARNING if is_warning and name == "memory" else ""
        rows.append(_row([_cell(name, "th", "font-weight:normal"), _cell(text, look=look)]))
    return f"<table>{''.join(rows)}</table>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with titles."""
    head = _row(_cell(title, "th") for title in titles)
    body = "".join(_row(map(_cell, row)) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(text: str, tag: str = "td", look: str = "") -> str:
    """A cell. look: styles in addition to those of all cells."""
    return f'<{tag} style="{_CELL}{look}">{escape(text)}</{tag}>'


def breakdown(run: Run) -> str:
    """A bar of the step time by cause, and its legend."""
    from scaleproof.reports.charts.style import CAUSE_COLOURS

    total_s = sum(max(0.0, run.breakdown_s.get(cause, 0.0)) for cause in BREAKDOWN)
    parts_s = {cause: run.breakdown_s.get(cause, 0.0) for cause in BREAKDOWN}
    shown = {cause: seconds for cause, seconds in parts_s.items() if total_s and seconds / total_s >= _MIN_SHARE}
    boxes, legend = [], []
    for cause, seconds in shown.items():
        colour, share, name = CAUSE_COLOURS[cause], format_percent(seconds / total_s), cause.replace("_", " ")
        boxes.append(f'<div title="{name}" style="width:{100 * seconds / total_s:.2f}%;background:{colour}"></div>')
        legend.append(f'<span style="color:{colour}">&#9632;</span> {name} {format_time_s(seconds)} ({share})')
    bar = f'<div style="display:flex;height:14px;max-width:40em">{"".join(boxes)}</div>'
    return f'{bar}<div style="font-size:90%">{" &nbsp; ".join(legend)}</div>' if shown else ""
