"""TODO: validator.strategy.pipeline."""
