"""TODO: validator.verify."""
