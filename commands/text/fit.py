"""Console text of a fit: what runs taught, errors before and after, what remains uncertain, and the run to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scaleproof.commands.text.sections import by_section
from scaleproof.reports.descriptions import fit

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.fit_record import FitRecord


def describe(record: FitRecord, out: Path | None) -> str:
    """Console text of a fit. out: the file that it was written to."""
    return by_section(fit.describe(record)) + ("" if out is None else f"\n\n{out}: use it with --set framework={out}")
