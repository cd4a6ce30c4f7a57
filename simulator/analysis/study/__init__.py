"""Studies: a scenario that varies along axes of fields, with one row of results for each point."""
