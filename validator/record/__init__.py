"""TODO: validator.record."""
