"""Experiments that measure for real and score predictions: proofs, faults with recovery, and convergence."""
