"""Measured runs of training jobs that were started elsewhere, from their logs and traces."""
