"""TODO: commands.text."""
