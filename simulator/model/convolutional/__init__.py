"""TODO: simulator.model.convolutional."""
