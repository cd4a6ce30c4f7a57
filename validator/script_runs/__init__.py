"""Training scripts as they are, run for real on this machine, recorded, and compared with their captures' predictions."""
