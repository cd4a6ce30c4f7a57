"""TODO: reports.charts."""
