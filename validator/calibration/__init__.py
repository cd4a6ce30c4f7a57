"""Calibration: probes are run where a cluster is, fits go through what they timed, and a cluster file says what came of it."""
