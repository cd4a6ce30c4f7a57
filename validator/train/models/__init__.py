"""TODO: validator.train.models."""
