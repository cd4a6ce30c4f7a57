"""Console text of the cost of perturbations: a row for each kind, a column for each consistency model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from scaleproof.simulator.analysis.stragglers import ALONE, Cell, Uneven
from scaleproof.simulator.common.units import format_number

_LINE = 100
# minimum share of lost throughput that is printed
_MIN_SHARE = 0.005


def describe(found: Uneven) -> str:
    """Console text of the cost of perturbations."""
    longest = max(map(len, found.ways))
    lines = [
        f"{found.scenario}: samples/s of {found.workers} workers, by perturbation and consistency model",
        *_table(found),
        "",
        *(
            f"  {name:<{longest}}  {'; '.join(filter(None, (words, found.framework_words(name))))}"
            for name, words in found.ways.items()
        ),
    ]
    notes = [*_stale(found), *_problems(found)]
    lines += ["", *(line for text in notes for line in textwrap.wrap(text, _LINE, subsequent_indent="  "))] if notes else []
    return "\n".join(lines)


def _table(found: Uneven) -> Iterator[str]:
    rows = [["", *found.ways], *([kind.replace("_", " "), *map(_cell, row.values())] for kind, row in found.cells.items())]
    first, *rest = (max(map(len, column)) for column in zip(*rows, strict=True))
    for kind, *cells in rows:
        columns = (cell.rjust(width) for cell, width in zip(cells, rest, strict=True))
        yield "   ".join([f"  {kind:<{first}}", *columns]).rstrip()


def _cell(cell: Cell) -> str:
    """'1,204  −37 %'."""
    if cell.samples_per_s is None:
        return "–"
    lost = (cell.of_even or 1.0) - 1
    change = f"{100 * lost:+.0f} %".replace("-", "−") if abs(lost) >= _MIN_SHARE else ""
    return f"{format_number(cell.samples_per_s)} {change:>6}"


def _stale(found: Uneven) -> Iterator[str]:
    """Staleness and dropped pushes of the consistency models that wait less."""
    for way in found.ways:
        cells = [row[way] for kind, row in found.cells.items() if kind != ALONE]
        behind = [cell.staleness for cell in cells if cell.staleness]
        dropped = [cell.dropped for cell in cells if cell.dropped]
        if behind:
            yield f"{way}: gradients are {_range(min(behind), max(behind))} updates behind on average"
        if dropped:
            yield f"{way}: {_range(100 * min(dropped), 100 * max(dropped))} % of pushes are dropped"


def _range(low: float, high: float) -> str:
    few, many = f"{low:.3g}", f"{high:.3g}"
    return few if few == many else f"{few} to {many}"


def _problems(found: Uneven) -> Iterator[str]:
    """Problems and warnings, each once."""
    cells = [(way, cell) for row in found.cells.values() for way, cell in row.items()]
    yield from dict.fromkeys(f"{way}: {cell.problem}" for way, cell in cells if cell.problem)
    yield from dict.fromkeys(f"warning: {text}" for _, cell in cells for text in cell.warnings)
