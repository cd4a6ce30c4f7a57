"""Recording: spans and clocks of ranks, their assembly into a `Run`, and the provenance of a measurement."""
