"""Construction of pipeline schedules; the interface is simulator.strategy.pipeline.schedule."""
