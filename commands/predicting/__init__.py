"""TODO: commands.predicting."""
