"""Scenarios: their schema, and how they are loaded, changed and written."""
