"""TODO: simulator.analysis.crossover."""
