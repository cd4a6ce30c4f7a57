"""TODO: simulator.uncertainty."""
