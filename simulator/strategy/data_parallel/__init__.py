"""TODO: simulator.strategy.data_parallel."""
