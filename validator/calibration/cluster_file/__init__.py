"""The cluster file that a calibration writes: its sections, their notes, and rewriting single numbers of a file."""
