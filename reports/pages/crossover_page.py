"""The page of a strategy map, with tables of all points and borders."""

from __future__ import annotations

from pathlib import Path

from scaleproof.reports.descriptions import crossover
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.simulator.analysis.crossover.crossover import FILE, Crossover


def page(folder: Path) -> Page:
    """The page of what `crossover --out` wrote. Raises InputError if it cannot be read."""
    found = Crossover.read(folder / FILE, f"--out {folder}")
    frames = {"points.csv": found.to_frame(), "borders.csv": found.borders_to_frame()}
    sheets = {name: csv_tables.frame_csv(frame) for name, frame in frames.items()}
    return described.page(crossover.describe(found), sheets, Sources([origins.made_with()]))
