"""TODO: simulator.strategy.model_parallel."""
