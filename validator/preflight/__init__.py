"""Checks before anything starts: what can be measured, why the rest is refused, and whether memory suffices."""
