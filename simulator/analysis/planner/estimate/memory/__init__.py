"""TODO: simulator.analysis.planner.estimate.memory."""
