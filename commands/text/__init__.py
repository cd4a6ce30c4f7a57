"""Console text of results: one module per kind of result."""
