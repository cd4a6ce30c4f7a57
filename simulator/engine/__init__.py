"""What times a Program. `events` is the reference; engines know programs, never strategies."""
