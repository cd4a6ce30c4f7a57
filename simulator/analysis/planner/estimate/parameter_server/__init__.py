"""Estimate for training with synchronous parameter servers."""
