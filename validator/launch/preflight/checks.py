"""Refuses scenarios that can be predicted but not trained, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Gpt, Mlp, ResNet
from scaleproof.simulator.model.graph import branches
from scaleproof.simulator.model.transformer.decoder import options
from scaleproof.simulator.program.perturbations import EVEN
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight import refusals
from scaleproof.validator.launch.preflight.capabilities import check_strategy

PRECISIONS: Final = ("fp64", "fp32", "bf16")
OPTIMIZERS: Final = ("sgd", "momentum", "adam")


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where `scenario` cannot be trained."""
    try:
        _check(scenario)
    except InputError as error:
        raise InputError(f"{scenario.name}: {error}") from None


def _check(scenario: Scenario) -> None:
    _check_model(scenario)
    check_strategy(scenario)
    precision = scenario.training.precision
    if precision not in PRECISIONS:
        message = f"{precision} is predicted but not measured: {refusals.PRECISIONS[precision]}"
        raise InputError(f"training.precision: {message}; give one of {', '.join(PRECISIONS)}")
    optimizer = scenario.training.optimizer
    if optimizer not in OPTIMIZERS:
        message = f"{optimizer} is predicted but not measured: {refusals.OPTIMIZERS[optimizer]}"
        raise InputError(f"training.optimizer: {message}; give one of {', '.join(OPTIMIZERS)}")
    if scenario.training.offload:
        raise InputError(f"training.offload is predicted but not measured: {refusals.OFFLOAD}; leave it out to measure")
    if scenario.input is not None:
        raise InputError(f"input is predicted but not measured: {refusals.INPUT}; leave it out to measure")
    if scenario.unevenness != EVEN:
        raise InputError(f"unevenness is predicted but not measured: {refusals.UNEVENNESS}; leave it out to measure")
    _check_data(scenario)


def _check_model(scenario: Scenario) -> None:
    """Raises InputError where there is no torch model of the scenario's; emulated compute needs only a chain of layers."""
    model, kind = scenario.model, scenario.strategy.kind
    is_chain = not branches(model.build_layers())
    if scenario.compute == "paced":
        if not is_chain:
            raise InputError(f"compute: a {model.kind} has branches, which cannot be emulated; give a model without branches")
        return
    or_paced = ", or set compute=paced" if is_chain else ""
    if not isinstance(model, Gpt | Mlp | ResNet):
        known = f"give a gpt, an mlp or a resnet{or_paced}"
        raise InputError(f"model: a {model.kind} can be predicted but not measured; {known}")
    if isinstance(model, ResNet) and kind != "data_parallel":
        known = f"give strategy data_parallel{or_paced}"
        raise InputError(f"model: a resnet can be predicted but not measured by {kind}; {known}")
    if isinstance(model, Gpt) and (used := options(model.model_copy(update={"experts": None}))):
        raise InputError(f"model: a gpt with {used.strip(', ')} can be predicted but not measured; leave that out{or_paced}")


def _check_data(scenario: Scenario) -> None:
    """Raises InputError where the data file is missing, too short, or not suited to the model."""
    if scenario.training.data is None:
        return
    path, model = Path(scenario.training.data), scenario.model
    if not isinstance(model, Gpt):
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
