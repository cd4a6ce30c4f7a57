"""TODO: validator.launch.preflight."""
