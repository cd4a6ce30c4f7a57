"""Published measurements: their tables, and each training run as the scenario that a user would write for it."""

from scaleproof.simulator.scenario.published.tables import Row, find_row, read_table
from scaleproof.simulator.scenario.published.transformer import Described, described

__all__ = ["Described", "Row", "described", "find_row", "read_table"]
