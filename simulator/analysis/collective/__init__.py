"""TODO: simulator.analysis.collective."""
