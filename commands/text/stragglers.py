"""Console text of the cost of perturbations: a row for each kind, a column for each consistency model."""

from __future__ import annotations

from collections.abc import Iterator

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.analysis.stragglers import ALONE, Cell, Uneven
from scaleproof.simulator.common.units import format_number, format_range

# minimum share of lost throughput that is printed
_MIN_SHARE = 0.005


def describe(found: Uneven) -> str:
    """Console text of the cost of perturbations."""
    rows = [["", *(title for name in found.ways for title in (name, ""))]]
    for kind, row in found.cells.items():
        rows.append([kind.replace("_", " "), *(text for cell in row.values() for text in _cell(cell))])
    ways = ((name, "; ".join(filter(None, (words, found.framework_words(name))))) for name, words in found.ways.items())
    lines = [
        f"{found.scenario}: samples/s of {found.workers} workers, by perturbation and consistency model",
        *table(rows, indent="  "),
        "",
        *table(ways, "<", indent="  "),
    ]
    notes = [line for text in (*_stale(found), *_problems(found)) for line in wrapped(text)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _cell(cell: Cell) -> tuple[str, str]:
    """Throughput, and its change if that is not small: '1,204' and '−37 %'."""
    if cell.samples_per_s is None:
        return "–", ""
    lost = (cell.of_even or 1.0) - 1
    return format_number(cell.samples_per_s), f"{100 * lost:+.0f} %".replace("-", "−") if abs(lost) >= _MIN_SHARE else ""


def _stale(found: Uneven) -> Iterator[str]:
    """Staleness and dropped pushes of the consistency models that wait less."""
    for way in found.ways:
        cells = [row[way] for kind, row in found.cells.items() if kind != ALONE]
        behind = [cell.staleness for cell in cells if cell.staleness]
        dropped = [cell.dropped for cell in cells if cell.dropped]
        if behind:
            yield f"{way}: gradients are {format_range(f'{min(behind):.3g}', f'{max(behind):.3g}')} updates behind on average"
        if dropped:
            low, high = (f"{100 * pick(dropped):.3g} %" for pick in (min, max))
            yield f"{way}: {format_range(low, high)} of pushes are dropped"


def _problems(found: Uneven) -> Iterator[str]:
    """Problems and warnings, each once."""
    cells = [(way, cell) for row in found.cells.values() for way, cell in row.items()]
    yield from dict.fromkeys(f"{way}: {cell.problem}" for way, cell in cells if cell.problem)
    yield from dict.fromkeys(f"warning: {text}" for _, cell in cells for text in cell.warnings)
