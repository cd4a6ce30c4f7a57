"""Refuses perturbations that cannot be imposed on real ranks and links, before anything starts."""

from __future__ import annotations

from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.cluster.perturbations import Tenant
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight import refusals


def check_perturbations(scenario: Scenario) -> None:
    """Raises InputError where perturbations of ranks or messages cannot be imposed."""
    unevenness = scenario.unevenness
    if unevenness.message_jitter:
        message = f"is predicted but not measured: {refusals.MESSAGE_JITTER}; leave it out to measure"
        raise InputError(f"unevenness.message_jitter {message}")
    for number, tenant in enumerate(unevenness.tenants):
        _check_tenant(scenario, tenant, f"unevenness.tenants.{number}")
    if scenario.compute == "real":
        _check_real(scenario)


def check_links(scenario: Scenario, where: str) -> None:
    """Raises InputError where the links on which `scenario` is measured have no background traffic. where: see `measure`."""
    if scenario.unevenness.tenants and where != "netlab":
        message = f"{refusals.LINKS}; give --on netlab, or leave them out"
        raise InputError(f"{scenario.name}: unevenness.tenants: {message}")


def _check_tenant(scenario: Scenario, tenant: Tenant, field: str) -> None:
    refused = "is predicted but not measured"
    if tenant.share is None:
        raise InputError(f"{field}.flows {refused}: {refusals.FLOWS}; give a share to measure")
    if not tenant.cycle(1.0, 0.0).is_for_ever:
        raise InputError(f"{field}: traffic at times {refused}: {refusals.TRAFFIC_TIMES}; leave after, lasts and period out")
    network = scenario.cluster.network
    if network is not None and not isinstance(network.topology, Switch):
        raise InputError(f"{field}: with several switches {refused}: {refusals.TREE_TRAFFIC}; give a switch as topology")


def _check_real(scenario: Scenario) -> None:
    """Raises InputError where perturbations need emulated compute."""
    unevenness = scenario.unevenness
    for field in ("noise", "throttled", "compute_jitter", "tail"):
        if getattr(unevenness, field):
            message = f"of real compute is predicted but not measured: {refusals.REAL_COMPUTE}; set compute=paced"
            raise InputError(f"unevenness.{field} {message}")
    for number, straggler in enumerate(unevenness.stragglers):
        if straggler.slowdown < 1:
            message = f"{straggler.slowdown:g} of real compute is predicted but not measured: {refusals.FASTER}"
            raise InputError(f"unevenness.stragglers.{number}.slowdown: {message}; give at least 1, or set compute=paced")
    if unevenness.stragglers and (field := _communicates_within_passes(scenario)):
        message = f"of real compute with {field} is predicted but not measured: {refusals.WITHIN_PASSES}"
        raise InputError(f"unevenness.stragglers {message}; leave it out, or set compute=paced")


def _communicates_within_passes(scenario: Scenario) -> str:
    """The first field with which ranks communicate while they compute, or an empty string."""
    strategy, plan = scenario.strategy, scenario.strategy.plan
    pushes = isinstance(strategy, ParameterServer) and strategy.overlap
    given = {
        "strategy.overlap": pushes or (plan.overlap and plan.averages),
        "strategy.overlap_gather": plan.overlap_gather,
        f"training.zero={scenario.training.zero}": scenario.training.zero >= 2 and plan.averages,
        "strategy.tensor": plan.tensor > 1,
        "strategy.context": plan.context > 1,
        "strategy.expert": plan.expert > 1,
    }
    return next((field for field, is_given in given.items() if is_given), "")
