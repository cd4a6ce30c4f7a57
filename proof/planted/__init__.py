"""Planted faults: a lab with one fault, drawn from a seed, to test whether `reconcile` names it and accuses nothing else."""
