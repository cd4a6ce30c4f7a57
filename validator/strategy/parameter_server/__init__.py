"""TODO: validator.strategy.parameter_server."""
