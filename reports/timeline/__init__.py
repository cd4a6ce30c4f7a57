"""TODO: reports.timeline."""
