"""TODO: simulator.cluster.collectives."""
