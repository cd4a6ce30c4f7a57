"""TODO: simulator.scenario."""
