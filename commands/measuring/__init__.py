"""TODO: commands.measuring."""
