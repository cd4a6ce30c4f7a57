"""TODO: simulator.cluster.network."""
