"""TODO: simulator.strategy.parameter_server."""
