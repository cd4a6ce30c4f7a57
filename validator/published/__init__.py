"""TODO: validator.published."""
