"""TODO: validator.launch."""
