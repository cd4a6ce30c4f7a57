"""Measured times of collectives as cases to predict, and curves of predictions with them."""
