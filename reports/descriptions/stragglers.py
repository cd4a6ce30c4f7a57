"""The cost of perturbations as sections: a row for each kind, a column for each consistency model."""

from __future__ import annotations

from collections.abc import Iterator

from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.reports.text import spaced
from scaleproof.simulator.analysis.stragglers import ALONE, Cell, Uneven
from scaleproof.simulator.common.units import format_number, format_range

# Minimum share of lost throughput that is printed.
_MIN_SHARE = 0.005


def describe(found: Uneven) -> Description:
    """The description of the cost of perturbations."""
    rates = [Column("", [spaced(kind) for kind in found.cells], is_text=True)]
    for way in found.ways:
        cells = [row[way] for row in found.cells.values()]
        rates.append(Column(way, ["–" if cell.samples_per_s is None else format_number(cell.samples_per_s) for cell in cells]))
        rates.append(Column("", list(map(_change, cells)), under=way))
    words = ["; ".join(filter(None, (meaning, found.framework_words(way)))) for way, meaning in found.ways.items()]
    ways = [Column("", list(found.ways), is_text=True), Column("", words, is_text=True)]
    title = f"{found.scenario}: samples/s of {found.workers} workers, by perturbation and consistency model"
    notes = [*_stale(found), *_problems(found)]
    sections = [
        Section("Throughput", "Throughput under each perturbation", tables=[Table(rates)], notes=notes),
        Section("Consistency models", "Consistency models", tables=[Table(ways)]),
    ]
    return Description(title, sections=sections)


def _change(cell: Cell) -> str:
    """The change of throughput, if it is not small: '−37 %'."""
    lost = (cell.of_even or 1.0) - 1
    return f"{100 * lost:+.0f} %".replace("-", "−") if abs(lost) >= _MIN_SHARE else ""


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
