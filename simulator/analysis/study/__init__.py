"""Studies: a scenario along axes of fields, and a row for each of the points that come of them."""

from __future__ import annotations

from scaleproof.simulator.analysis.study.store import table
from scaleproof.simulator.analysis.study.sweep import sweep

__all__ = ["sweep", "table"]
