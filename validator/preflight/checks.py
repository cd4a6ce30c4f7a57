"""Refuses scenarios that can be predicted but not trained, before anything starts."""

from __future__ import annotations

from pathlib import Path

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Traced
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.preflight.refusals import refusals
from scaleproof.validator.train.capabilities import trains_by_layers


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where `scenario` cannot be trained."""
    try:
        for message in refusals(scenario):
            raise InputError(message)
        if isinstance(scenario.model, Traced) and scenario.compute == "real":
            _check_traced(scenario, scenario.model)
        _check_data(scenario)
    except InputError as error:
        raise InputError(f"{scenario.name}: {error}") from None


def check_links(scenario: Scenario, where: str) -> None:
    """Raises InputError where the links on which `scenario` is measured have no background traffic. where: see `measure`."""
    if scenario.unevenness.tenants and where != "netlab":
        message = "links of this machine or of a cluster are not ours to fill with background traffic"
        raise InputError(f"{scenario.name}: unevenness.tenants: {message}; give --on netlab, or leave them out")


def _check_traced(scenario: Scenario, model: Traced) -> None:
    """Raises InputError where a user's module cannot be trained, or not be divided into layers. Imports torch, as tracing
    has."""
    from scaleproof.validator.train.models import traced

    traced.check_dense(model)
    if trains_by_layers(scenario):
        traced.check_divisible(model)
        if scenario.training.zero == 3 and scenario.strategy.plan.averages:
            traced.check_shardable(model)


def _check_data(scenario: Scenario) -> None:
    """Raises InputError where the data file is missing, too short, or not suited to the model."""
    if scenario.training.data is None:
        return
    path, model = Path(scenario.training.data), scenario.model
    if not isinstance(model, Transformer):
        raise InputError(f"training.data: {path} is text, which a model of kind {model.kind} cannot read; leave data out")
    try:
        size_bytes = path.stat().st_size if path.is_file() else None
    except OSError:
        size_bytes = None
    if size_bytes is None:
        raise InputError(
            f"training.data: {path}: no such file; give the path of a text file, or leave data out for random tokens"
        )
    if size_bytes <= model.sequence:
        raise InputError(
            f"training.data: {path} has {size_bytes} bytes; give at least {model.sequence + 1}, one sequence and a byte"
        )
