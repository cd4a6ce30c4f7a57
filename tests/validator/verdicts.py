"""What a measured run says of how rightly it trained."""

from __future__ import annotations

from simulator.scenario import Scenario
from validator.measure import Watch, measure


def deviation(scenario: Scenario) -> float:
    """Of the ranks' parameters from those of one process that follows the same rule."""
    verified = measure(scenario, watch=Watch(verify=True)).verified
    assert verified is not None
    return float(verified["deviation"])


def paced(scenario: Scenario) -> Scenario:
    """The same with paced compute."""
    return scenario.model_copy(update={"compute": "paced"})
