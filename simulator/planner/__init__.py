"""Planner: which of all the ways to train a model on so many devices is best, by how much, and how sure that is."""

from simulator.planner.search import Choice, Planned, plan

__all__ = ["Choice", "Planned", "plan"]
