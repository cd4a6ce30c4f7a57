"""Planner: which of all the ways to train a model on so many devices is best, by how much, and how sure that is."""

from scaleproof.simulator.analysis.planner.search import PlanChoice, PlanResult, plan

__all__ = ["PlanChoice", "PlanResult", "plan"]
