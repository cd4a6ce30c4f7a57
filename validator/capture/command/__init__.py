"""The command that starts a script, as users write it, and the launchers in it."""
