"""Captures of training scripts: runs them as single ranks of a large job, on GPUs that do not exist, and records a step."""
