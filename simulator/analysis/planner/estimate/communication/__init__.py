"""TODO: simulator.analysis.planner.estimate.communication."""
