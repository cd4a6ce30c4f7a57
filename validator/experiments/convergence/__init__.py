"""TODO: validator.experiments.convergence."""
