"""Real training of each strategy: the counterpart of `scaleproof.simulator.strategy`, with the same folders."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from scaleproof.simulator.parallelism import Strategy
from scaleproof.validator.strategy.base import Context, Trainer

# The module of each kind of strategy, in this package.
_MODULES: Final = {
    "data_parallel": "data_parallel.trainer",
    "gather_average": "data_parallel.gather_average",
    "hybrid": "hybrid.trainer",
    "local_sgd": "data_parallel.local_sgd",
    "model_parallel": "model_parallel.trainer",
    "parameter_server": "parameter_server.trainer",
    "pipeline": "pipeline.trainer",
}


def create(context: Context, strategy: Strategy) -> Trainer:
    """The trainer of this rank for `strategy`. Its module is imported when it is first used."""
    return cast(Trainer, import_module(f"{__name__}.{_MODULES[strategy.kind]}").create(context, strategy))
