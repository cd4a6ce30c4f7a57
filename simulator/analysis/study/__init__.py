"""Studies: a scenario varied along axes of its fields, and a table with a row for each point."""
