"""Published measurements: their tables, and each training run as the scenario that a user would write for it."""

from scaleproof.simulator.published.tables import Row, find_row, read_table
from scaleproof.simulator.published.training_runs import Described, described

__all__ = ["Described", "Row", "described", "find_row", "read_table"]
