"""Plays ranks: a process for each, with a GPU that does not exist, and reports of where its script is."""
