"""Console text: tables with aligned columns, bars, titled sections and wrapped paragraphs.

The text has no colours, and tables are as wide as their cells, so that a pipe or a file gets the same text as a terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from scaleproof.simulator.common.units import format_percent

if TYPE_CHECKING:
    from rich.console import JustifyMethod

# Width of wrapped text.
WIDTH: Final = 100
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|[KMGT]iB\b)")
# Rich shortens cells that do not fit into its console; no table is this wide.
_UNLIMITED: Final = 100_000
_BAR_WIDTH: Final = 24
_EIGHTHS: Final = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_JUSTIFY: Final[Mapping[str, JustifyMethod]] = {"<": "left", ">": "right"}


def table(
    rows: Iterable[Sequence[str]], align: str = "<>", widths: Sequence[int] = (), gap: int = 2, indent: str = ""
) -> list[str]:
    """Lines of a table, whose first row may be titles.

    align: `<` or `>` for each column; the last one is that of all further columns. widths: minimum widths of the first columns.
    gap: number of spaces between columns.
    """
    # --help does not print tables, and need not import rich
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(cell) for cell in row] for row in rows]
    if not cells:
        return []
    grid = Table.grid(padding=(0, gap, 0, 0))
    for column in range(len(cells[0])):
        justify = _JUSTIFY[align[min(column, len(align) - 1)]]
        grid.add_column(justify=justify, min_width=widths[column] if column < len(widths) else None, no_wrap=True)
    for row in cells:
        grid.add_row(*row)
    console = Console(file=(text := StringIO()), width=_UNLIMITED, color_system=None, force_terminal=False)
    console.print(grid)
    return [f"{indent}{line}".rstrip() for line in text.getvalue().removesuffix("\n").split("\n")]


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """A bar that is `width` characters long for a share of 1, accurate to an eighth of a character; empty below 0."""
    blocks, eighths = divmod(round(max(0.0, share) * width * 8), 8)
    return "█" * blocks + _EIGHTHS[eighths]


def shares(rows: Iterable[tuple[str, str, float]]) -> list[str]:
    """Lines of (name, amount, share), each with the share in per cent and as a bar."""
    return table(((name, amount, format_percent(share), bar(share)) for name, amount, share in rows), "<>><", (22, 9, 7), gap=1)


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
