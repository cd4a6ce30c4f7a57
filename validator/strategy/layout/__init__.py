"""TODO: validator.strategy.layout."""
