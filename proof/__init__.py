"""What proves predictions and publishes the result: `score`, `prove`, `faults`, `converge`, `claims` and `make gpu-check`.

Nothing that predicts, measures or reports imports it.
"""
