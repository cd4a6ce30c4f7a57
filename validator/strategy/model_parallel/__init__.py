"""TODO: validator.strategy.model_parallel."""
