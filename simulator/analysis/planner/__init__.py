"""Search for the best configuration to train a model on a given number of devices."""

from scaleproof.simulator.analysis.planner.search import PlanChoice, PlanResult, plan

__all__ = ["PlanChoice", "PlanResult", "plan"]
