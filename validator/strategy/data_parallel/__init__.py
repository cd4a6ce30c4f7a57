"""TODO: validator.strategy.data_parallel."""
