"""The command line: one module per command with its arguments, its call and what it prints."""
