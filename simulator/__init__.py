"""Forecasts how fast distributed training runs: a Scenario in, a predicted Run out."""
