"""Studies: a scenario along axes of fields, and a row for each of the points that come of them."""

from __future__ import annotations

from simulator.study.folder import table
from simulator.study.running import sweep

__all__ = ["sweep", "table"]
