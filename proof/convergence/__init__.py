"""Measurement of convergence: steps to a target loss by batch size and staleness."""
