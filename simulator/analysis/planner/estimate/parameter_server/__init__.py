"""TODO: simulator.analysis.planner.estimate.parameter_server."""
