"""What can be predicted but not trained is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.model import Gpt, Mlp
from simulator.scenario import Scenario
from simulator.unevenness import EVEN

PRECISIONS: Final = ("fp64", "fp32", "bf16")


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where what `scenario` asks for cannot be trained."""
    if not isinstance(scenario.model, Gpt | Mlp):
        raise InputError(f"model: a {scenario.model.kind} can be predicted but not measured; give a gpt or an mlp")
    precision = scenario.training.precision
    if precision not in PRECISIONS:
        raise InputError(f"training.precision: {precision} is predicted but not measured; give one of {', '.join(PRECISIONS)}")
    if scenario.unevenness != EVEN:
        raise InputError("unevenness: real ranks are as uneven as they are; leave it out to measure")
    _check_data(scenario)


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
