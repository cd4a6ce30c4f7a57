"""TODO: simulator.analysis.sensitivity."""
