"""Published measurements: their tables, and each training run as the scenario that a user would write for it."""
