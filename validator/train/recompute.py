"""Recomputation in real training: torch.utils.checkpoint drops activations and computes them again in the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scaleproof.simulator.memory.activations import segments
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.model.recompute import Recompute, again
from scaleproof.simulator.scenario.schema import Scenario

# Recomputation of these modules stops at the next product, whose input is their output.
_WITH_NEXT_PRODUCT: Final = ("activation", "moe_act")


class Sections:
    """Runs the named sections of a block; those in `names` keep only their inputs and are recomputed in the backward pass.

    A section inside another recomputed section is recomputed as a part of it.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        # the activation functions of all MLPs include those of experts
        self._names = names | {"moe_act"} if "activation" in names else names
        self._is_inside = False

    def __call__(self, name: str, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Runs `function` as the section `name`, a `scaleproof.simulator.model.recompute.ModuleName`."""
        if self._is_inside or name not in self._names:
            return function(*inputs)
        return cast(Tensor, checkpointed(partial(self._inside, function), *inputs, early_stop=name in _WITH_NEXT_PRODUCT))

    def _inside(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        self._is_inside = True
        try:
            return function(*inputs)
        finally:
            self._is_inside = False


def prepare(scenario: Scenario, layers: Mapping[int, nn.Module]) -> list[range]:
    """Prepares a stage's numbered layers for the scenario's recomputation; returns those that are recomputed as a whole, in
    parts that keep only their inputs.

    Emulated layers are unchanged: they wait for the predicted duration of the recomputation; see `exchanges_again`.
    """
    recompute = scenario.training.recompute
    if scenario.compute == "paced" or recompute.kind == "none":
        return []
    if recompute.kind == "selective":
        for layer in layers.values():
            _recompute_sections(layer, recompute)
        return []
    return list(_segments(scenario, layers, recompute))


def exchanges_again(scenario: Scenario, stage: Sequence[Layer]) -> list[Sequence[Exchange]]:
    """For each layer of a stage, the exchanges that recomputation repeats in its backward pass."""
    recompute = scenario.training.recompute
    rows = zip(stage, recompute.concerned(stage), strict=True)
    return [_repeated(layer, recompute) if is_recomputed else () for layer, is_recomputed in rows]


def _repeated(layer: Layer, recompute: Recompute) -> Sequence[Exchange]:
    if recompute.kind == "selective":
        return again(layer, recompute).exchanges
    return [exchange for exchange in layer.exchanges if not exchange.backward]


def checkpointed(function: Callable[..., Any], *inputs: Tensor, early_stop: bool = False) -> Any:
    """Calls `function` and keeps only its inputs, and the state of random numbers, for the backward pass.

    early_stop: whether recomputation ends with the last tensor that the backward pass needs; else it repeats all computation
    and exchanges, as predictions assume.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=True, early_stop=early_stop)


def _recompute_sections(layer: nn.Module, recompute: Recompute) -> None:
    run = Sections(frozenset(recompute.module_names))
    for module in layer.modules():
        if isinstance(getattr(module, "run", None), Sections):
            cast(Any, module).run = run


def _segments(scenario: Scenario, layers: Mapping[int, nn.Module], recompute: Recompute) -> Iterator[range]:
    specs = scenario.model.build_layers(scenario.strategy.plan.shard)
    stage = [specs[number] for number in layers]
    rows = zip(segments(stage, recompute).tolist(), recompute.concerned(stage), layers, strict=True)
    for (_, is_recomputed), group in itertools.groupby(rows, key=lambda row: row[:2]):
        numbers = [number for _, _, number in group]
        if is_recomputed:
            yield range(numbers[0], numbers[-1] + 1)
