"""TODO: reports.pages."""
