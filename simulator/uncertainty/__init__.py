"""Uncertainty of predictions: intervals of step times and of speed-ups."""
