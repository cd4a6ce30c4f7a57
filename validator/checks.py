"""What can be predicted but not trained is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.model import Gpt, Mlp
from simulator.model.transformer import options
from simulator.recompute import NO_RECOMPUTE
from simulator.scenario import Scenario
from simulator.strategy import Strategy
from simulator.unevenness import EVEN

PRECISIONS: Final = ("fp64", "fp32", "bf16")
OPTIMIZERS: Final = ("sgd", "momentum", "adam")
SCHEDULES: Final = ("gpipe", "1f1b")
_STAGED: Final = ("stages_", "microbatches_", "schedule")
# Strategies that real training has, with the fields that it follows.
_MEASURED: Final[dict[str, tuple[str, ...]]] = {
    "data_parallel": ("workers_", "bucket_bytes", "first_bucket_bytes", "overlap"),
    "parameter_server": ("workers_", "servers_", "placement"),
    "pipeline": _STAGED,
    "hybrid": ("workers_", "bucket_bytes", *_STAGED),
}


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where what `scenario` asks for cannot be trained."""
    try:
        _check(scenario)
    except InputError as error:
        raise InputError(f"{scenario.name}: {error}") from None


def _check(scenario: Scenario) -> None:
    if not isinstance(scenario.model, Gpt | Mlp):
        raise InputError(f"model: a {scenario.model.kind} can be predicted but not measured; give a gpt or an mlp")
    _check_strategy(scenario.strategy)
    if isinstance(scenario.model, Gpt) and (asked := options(scenario.model)):
        raise InputError(f"model: a gpt with {asked.strip(', ')} can be predicted but not measured; leave that out")
    precision = scenario.training.precision
    if precision not in PRECISIONS:
        raise InputError(f"training.precision: {precision} is predicted but not measured; give one of {', '.join(PRECISIONS)}")
    optimizer = scenario.training.optimizer
    if optimizer not in OPTIMIZERS:
        raise InputError(f"training.optimizer: {optimizer} is predicted but not measured; give one of {', '.join(OPTIMIZERS)}")
    _check_plain(scenario)
    if scenario.unevenness != EVEN:
        raise InputError("unevenness: real ranks are as uneven as they are; leave it out to measure")
    _check_data(scenario)


def _check_strategy(strategy: Strategy) -> None:
    """Raises InputError where real training has no such strategy, or not with these fields."""
    measured = _MEASURED.get(strategy.kind)
    if measured is None:
        known = ", ".join(_MEASURED)
        raise InputError(f"strategy: {strategy.kind} can be predicted but not measured; give one of {known}")
    for name, field in type(strategy).model_fields.items():
        given = getattr(strategy, name)
        if name not in ("kind", *measured) and given != field.get_default(call_default_factory=True):
            raise InputError(f"strategy.{field.alias or name} is predicted but not measured; leave it out to measure")
    plan = strategy.plan
    if plan.stages > 1 and plan.schedule not in SCHEDULES:
        message = f"strategy.schedule: {plan.schedule} is predicted but not measured; give one of {', '.join(SCHEDULES)}"
        raise InputError(message)
    if plan.schedule == "1f1b" and plan.microbatches < plan.stages > 1:
        numbers = f"{plan.microbatches} for {plan.stages}"
        message = f"torch's 1f1b needs at least as many microbatches as stages, got {numbers}; give {plan.stages}, or gpipe"
        raise InputError(f"strategy.microbatches: {message}")


def _check_plain(scenario: Scenario) -> None:
    """Raises InputError where the scenario saves memory or loads its input as real training here does not."""
    training = scenario.training
    asked = {
        "training.recompute": training.recompute != NO_RECOMPUTE,
        "training.zero": training.zero > 0,
        "training.offload": bool(training.offload),
        "input": scenario.input is not None,
    }
    for field in (field for field, given in asked.items() if given):
        raise InputError(f"{field} is predicted but not measured; leave it out to measure")


def _check_data(scenario: Scenario) -> None:
    """Raises InputError where the data file is missing, too short, or of no use to the model."""
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
