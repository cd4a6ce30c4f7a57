"""TODO: simulator.strategy.pipeline."""
