"""Commands that turn results of other commands into pages, pictures and tables."""
