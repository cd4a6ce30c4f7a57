"""TODO: simulator.analysis.planner.estimate.pipeline."""
