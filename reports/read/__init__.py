"""TODO: reports.read."""
