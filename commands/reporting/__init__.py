"""TODO: commands.reporting."""
