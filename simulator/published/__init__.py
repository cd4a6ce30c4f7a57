"""Published measurements: their tables, and each training run as the scenario that a user would write for it."""

from simulator.published.tables import Row, find_row, read_table
from simulator.published.transformer import Described, described

__all__ = ["Described", "Row", "described", "find_row", "read_table"]
