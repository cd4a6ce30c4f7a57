"""Faults of exchanges of emulated layers, which verification must detect; imported by the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.model_parallel.emulated_exchanges import EmulatedExchanges


def attach_nothing(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Layers exchange nothing."""
    EmulatedExchanges.attach = lambda self, module, layer, again: None  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def forget_the_backward_pass(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Layers exchange what belongs to forward passes alone."""
    attach = EmulatedExchanges.attach

    def half(self: EmulatedExchanges, module: Any, layer: Any, again: Any) -> None:
        attach(self, module, replace(layer, exchanges=tuple(one for one in layer.exchanges if not one.backward)), again)

    EmulatedExchanges.attach = half  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


class _Nothing:
    """A completed collective without effect."""

    def wait(self) -> None:
        pass


def _nothing(*arguments: Any) -> Any:
    return _Nothing()


def sum_nothing(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Sums that are not waited for are not made: gradients are averaged by others."""
    allreduce = dist.all_reduce

    def one(tensor: Any, *arguments: Any, async_op: bool = False, **more: Any) -> Any:
        return _Nothing() if async_op else allreduce(tensor, *arguments, **more)

    vars(dist)["all_reduce"] = one
    return train_here(scenario, parameters_folder)


def gather_nothing(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    Collectives.begin_gather = _nothing  # type: ignore[assignment]
    return train_here(scenario, parameters_folder)


def scatter_nothing(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    Collectives.begin_scatter = _nothing  # type: ignore[assignment]
    return train_here(scenario, parameters_folder)
