"""TODO: validator.experiments."""
