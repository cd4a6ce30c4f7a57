"""TODO: simulator.analysis."""
