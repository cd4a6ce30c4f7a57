"""How a rank really trains: the twin of scaleproof.simulator.strategy, by the same names."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from scaleproof.simulator.strategy import Strategy
from scaleproof.validator.strategy.base import Context, Trainer


def create(context: Context, strategy: Strategy) -> Trainer:
    """This rank's part in training by `strategy`: what the module of its kind makes (`scaleproof.validator.launch.preflight.capabilities` knows which)."""
    return cast(Trainer, import_module(f"{__name__}.{strategy.kind}").create(context, strategy))
