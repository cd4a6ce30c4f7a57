"""TODO: validator.netlab."""
