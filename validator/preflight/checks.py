"""Refuses scenarios that can be predicted but not trained, or not here, before anything starts. where: see `measure`."""

from __future__ import annotations

import os

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Traced
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import network_interfaces
from scaleproof.validator.launch.rank_environment import place_in
from scaleproof.validator.launch.refusal import refuse
from scaleproof.validator.netlab import compatibility
from scaleproof.validator.preflight.memory_check import check_room
from scaleproof.validator.preflight.refusals import refusals
from scaleproof.validator.record import gpu_facts
from scaleproof.validator.train.capabilities import sent_tables, trains_by_layers, uses_gpus
from scaleproof.validator.verify.verify import check_verifiable


def check(scenario: Scenario, where: str, interface: str | None, verify: bool = False) -> None:
    """Raises InputError where the scenario's ranks cannot be started on this machine, or other ranks have been started."""
    check_trainable(scenario)
    check_links(scenario, where)
    if verify:
        check_verifiable(scenario)
    place = place_in(os.environ)
    gpus_bytes = gpu_facts.memories_bytes(scenario.cluster.device.capacity_bytes) if uses_gpus(scenario) else []
    if where == "cluster" and place is not None:
        check_number(scenario, place.ranks)
        check_room(scenario, gpus_bytes, place.local_ranks)
        return
    check_room(scenario, gpus_bytes)
    check_interface(where, interface)
    if where == "netlab":
        compatibility.check(scenario)


def check_number(scenario: Scenario, started: int) -> None:
    """Raises InputError where the number of started ranks is not the strategy's."""
    needed = scenario.strategy.ranks
    subject = f"started as {started} ranks, but the strategy has {needed}"
    refuse(scenario, [(started != needed, subject, "", f"start {needed} processes")])


def check_interface(where: str, interface: str | None) -> None:
    """Raises InputError where ranks cannot communicate on an interface of that name."""
    if interface is not None and where == "netlab":
        raise InputError(f"--interface {interface}: netlab's hosts have one interface each; leave it out")
    if interface is not None:
        network_interfaces.check(interface)


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

    if scenario.strategy.kind != "parameter_server":
        traced.check_dense(model)
    elif sent_tables(scenario):
        traced.check_rows(model)
    if trains_by_layers(scenario):
        traced.check_divisible(model)
        if scenario.training.zero == 3 and scenario.strategy.plan.averages:
            traced.check_shardable(model)
