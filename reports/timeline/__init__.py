"""Timelines of a step: ranks against time."""
