"""TODO: validator.train."""
