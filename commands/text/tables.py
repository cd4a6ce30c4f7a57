"""Console text: tables with aligned columns, bars, titled sections and wrapped paragraphs.

The text has no colours, and tables are as wide as their cells, so that a pipe or a file gets the same text as a terminal.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final

# Width of wrapped text.
WIDTH: Final = 100
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|[KMGT]iB\b)")
_BAR_WIDTH: Final = 24
# Minimum widths of names, amounts and shares in tables with bars.
SHARE_WIDTHS: Final = (22, 9, 7)
_EIGHTHS: Final = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def table(
    rows: Iterable[Sequence[str]], align: str = "<>", widths: Sequence[int] = (), gap: int = 2, indent: str = ""
) -> list[str]:
    """Lines of a table, whose first row may be titles.

    align: `<` or `>` for each column; the last one is that of all further columns. widths: minimum widths of the first columns.
    gap: number of spaces between columns.
    """
    cells = [list(row) for row in rows]
    if not cells:
        return []
    columns = len(cells[0])
    aligns = align[:columns].ljust(columns, align[-1])
    measured = [max(_width(row[column]) for row in cells) for column in range(columns)]
    needed = [max(pair) for pair in zip_longest(measured, widths[:columns], fillvalue=0)]
    return [f"{indent}{(' ' * gap).join(map(_padded, row, aligns, needed))}".rstrip() for row in cells]


def _padded(cell: str, align: str, width: int) -> str:
    space = " " * (width - _width(cell))
    return cell + space if align == "<" else space + cell


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text if not unicodedata.combining(letter))


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """A bar that is `width` characters long for a share of 1, accurate to an eighth of a character; empty below 0."""
    blocks, eighths = divmod(round(max(0.0, share) * width * 8), 8)
    return "█" * blocks + _EIGHTHS[eighths]


def wrapped(text: str, first: str = "", rest: str = "  ") -> list[str]:
    """Lines of a paragraph. first, rest: what the first and all further lines begin with. Numbers stay with their units."""
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_NO_BREAK, text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [line.replace(_NO_BREAK, " ") for line in lines]


def sections(parts: Mapping[str, Iterable[str]]) -> list[str]:
    """Lines of titled sections; the title stands in front of the first line. Sections without lines are left out."""
    bodies = {title: [line for text in texts for line in wrapped(text)] for title, texts in parts.items()}
    rows = [("" if number else title, line) for title, body in bodies.items() for number, line in enumerate(body)]
    return table(rows, "<", (13,), indent="  ")
