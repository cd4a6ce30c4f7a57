"""Charts of studies: curves, bars and maps."""
