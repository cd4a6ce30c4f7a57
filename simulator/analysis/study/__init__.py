"""Studies: a scenario that varies along axes of fields, with one row of results for each point."""

from __future__ import annotations

from scaleproof.simulator.analysis.study.store import table
from scaleproof.simulator.analysis.study.sweep import sweep

__all__ = ["sweep", "table"]
