"""TODO: validator.calibration.fit."""
