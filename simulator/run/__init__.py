"""TODO: simulator.run."""
