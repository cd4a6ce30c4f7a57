"""Proving: a lab is calibrated from probes alone, then predictions are held against runs of what was never measured."""
