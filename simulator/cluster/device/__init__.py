"""TODO: simulator.cluster.device."""
