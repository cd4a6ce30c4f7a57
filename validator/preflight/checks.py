"""Refuses scenarios that can be predicted but not trained, or not here, before anything starts."""

from __future__ import annotations

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Traced
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.refusal import refuse
from scaleproof.validator.preflight.refusals import refusals
from scaleproof.validator.train.capabilities import trains_by_layers


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where `scenario` cannot be trained."""
    refuse(scenario, refusals(scenario))
    if isinstance(scenario.model, Traced) and scenario.compute == "real":
        try:
            _check_traced(scenario, scenario.model)
        except InputError as error:
            raise InputError(f"{scenario.name}: {error}") from None


def check_links(scenario: Scenario, where: str) -> None:
    """Raises InputError where the links on which `scenario` is measured have no background traffic. where: see `measure`."""
    reason = "links of this machine or of a cluster are not ours to fill with background traffic"
    is_refused = scenario.unevenness.tenants and where != "netlab"
    refuse(scenario, [(is_refused, "unevenness.tenants", reason, "give --on netlab, or leave them out")])


def _check_traced(scenario: Scenario, model: Traced) -> None:
    """Raises InputError where a user's module cannot be trained, or not be divided into layers. Imports torch, as tracing
    has."""
    from scaleproof.validator.train.models import traced

    traced.check_dense(model)
    if trains_by_layers(scenario):
        traced.check_divisible(model)
        if scenario.training.zero == 3 and scenario.strategy.plan.averages:
            traced.check_shardable(model)
