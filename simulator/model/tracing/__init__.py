"""TODO: simulator.model.tracing."""
