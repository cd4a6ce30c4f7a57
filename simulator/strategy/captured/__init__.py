"""Compilation of captured training scripts: their own streams, collectives and messages, as they were recorded."""
