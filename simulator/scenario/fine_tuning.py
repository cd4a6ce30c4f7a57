"""Rules of training a part of a model: what cannot be trained, or stored, as a scenario says."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.device.device import storage_precision
from scaleproof.simulator.common.yaml_file import FieldPath
from scaleproof.simulator.model import adapters
from scaleproof.simulator.model.layers import ModelSpec
from scaleproof.simulator.model.traced import Traced

if TYPE_CHECKING:
    from scaleproof.simulator.scenario.schema import Scenario

# By precision, generations of devices that bitsandbytes does not support (its installation guide, version 0.48: compute
# capability 6.0, 7.5 for 8 bits; no TPUs).
_UNSUPPORTED: Final = {"nf4": ("kepler", "tpu"), "int8": ("kepler", "pascal", "volta", "tpu")}


def fine_tuning_problems(scenario: Scenario) -> Iterator[tuple[FieldPath, str]]:
    """Fields of fine-tuning that do not suit the scenario, and messages that say what to do. Raises FieldError for adapters
    that the model cannot have."""
    training, base = scenario.training, scenario.training.base_precision
    if training.double_quantization and base != "nf4":
        message = f"goes with base_precision nf4, not {base}; give nf4, or leave this out"
        yield ("training", "double_quantization"), message
    if training.adapters is not None or training.freeze:
        yield from _unsuited(scenario)
    elif base is not None:
        message = f"{base} is of frozen parameters, but all are trained; add training.adapters, or leave it out"
        yield ("training", "base_precision"), message
    if base is not None:
        yield from _base_problems(scenario, base)


def _unsuited(scenario: Scenario) -> Iterator[tuple[FieldPath, str]]:
    """Models and strategies whose trained part is not chosen so."""
    training, strategy = scenario.training, scenario.strategy
    field = "training", "freeze" if training.adapters is None else "adapters"
    if isinstance(scenario.model, Traced):
        yield field, "a python: model says by requires_grad what is trained; say it there, and leave this out"
    if isinstance(strategy, CapturedStrategy):
        yield field, "a captured script says what is trained; leave this out"
    if training.adapters is None:
        return
    if training.freeze:
        yield ("training", "freeze"), "with adapters all layers are frozen; leave either out"
    if strategy.plan.expert > 1 and training.zero == 3:
        yield field, "gathers of frozen experts are not modelled; set training.zero=2 or strategy.expert=1"
    _check(training.adapters, scenario.model)


@functools.lru_cache(maxsize=64)
def _check(given: adapters.Adapters, model: ModelSpec) -> None:
    """Raises FieldError for adapters that the model cannot have."""
    adapters.check(given, model.build_layers())


def _base_problems(scenario: Scenario, base: str) -> Iterator[tuple[FieldPath, str]]:
    """Precisions of frozen parameters that products do not compute with, or that the device does not have."""
    training, device, field = scenario.training, scenario.cluster.device, ("training", "base_precision")
    stored = storage_precision(training.precision)
    is_cast = base == "fp32" and training.autocast
    if base in ("bf16", "fp16", "fp32") and base != stored and not is_cast:
        yield field, f"{base}, but products compute in {stored}; give {stored}, nf4, int8 or fp8, or leave it out"
    if device.kernels is not None and device.kernels.generation in _UNSUPPORTED.get(base, ()):
        yield field, f"bitsandbytes has no {base} on {device.name}; give {stored}, or another device"
