"""Commands that write pages of what other commands left in a folder."""
