"""TODO: simulator.common."""
