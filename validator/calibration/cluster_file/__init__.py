"""TODO: validator.calibration.cluster_file."""
