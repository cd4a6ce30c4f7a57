"""Runs: the result type of predictions and measurements, and what is derived from it."""
