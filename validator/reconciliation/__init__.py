"""Reconciliation of predicted and measured runs, and explanation of their difference."""
