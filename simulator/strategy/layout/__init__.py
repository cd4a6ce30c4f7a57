"""TODO: simulator.strategy.layout."""
