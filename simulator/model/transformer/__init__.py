"""TODO: simulator.model.transformer."""
