"""Compute of a layer's passes behind which collectives are hidden: each second of it hides a second of one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Self

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Operator
from scaleproof.simulator.model.recompute import again
from scaleproof.simulator.strategy.job import Job


class LayerPass(IntEnum):
    """A pass over a layer. AGAIN: recomputation in the backward pass, which repeats the forward pass or some of it."""

    FORWARD = 0
    BACKWARD = 1
    AGAIN = 2


@dataclass
class ComputePart:
    """Compute of a pass. operator: None for time in which no operator computes, as the host issues kernels or data are copied.
    of_weights: whether it is the half of a backward pass that computes gradients of weights. left_s: seconds of it that hide no
    collective yet."""

    pass_: LayerPass
    operator: Operator | None
    of_weights: bool
    left_s: float


class Overlap(NamedTuple):
    """Compute that a collective overlaps with. least: share of the collective that is exposed in any case: processors that it
    takes from that compute, a piece before or after it, or passes without such compute. paired: share of passes with it."""

    overlaps: Callable[[ComputePart], bool]
    least: float
    paired: float = 1.0

    @classmethod
    def within(cls, pass_: LayerPass, overlaps: Callable[[Operator, bool], Any], least: float) -> Self:
        """Overlap with operators of one pass, which `overlaps` selects given an operator and whether the part computes
        gradients of weights, and with the time of that pass in which no operator computes."""

        def within(part: ComputePart) -> bool:
            return part.pass_ is pass_ and (part.operator is None or bool(overlaps(part.operator, part.of_weights)))

        return cls(within, least)


class ComputeBudget:
    """The compute of a layer's passes, which all collectives that overlap with it share.

    A layer's passes therefore never take less time than its collectives, nor more time on a faster device.
    """

    def __init__(self, parts: Sequence[ComputePart]) -> None:
        self._parts = parts

    @classmethod
    def of_layer(cls, layer: Layer, samples: float, job: Job) -> Self:
        """All compute of a layer's passes over `samples` samples."""
        repeated = layer.operators if job.recompute.kind == "full" else again(layer, job.recompute).operators
        operators = {LayerPass.FORWARD: layer.operators, LayerPass.BACKWARD: layer.operators, LayerPass.AGAIN: repeated}
        passes_s = {operator: job.operators_s(layer, [operator], samples) for operator in {*layer.operators, *repeated}}
        parts: list[ComputePart] = []
        for pass_, pass_s in zip(LayerPass, job.layer_passes_s(layer, samples), strict=True):
            seconds = [(operator, passes_s[operator][pass_ is LayerPass.BACKWARD]) for operator in operators[pass_]]
            parts += _parts(pass_, pass_s, seconds)
        return cls(parts)

    def among(self, overlaps: Callable[[ComputePart], bool]) -> tuple[int, ...]:
        """Numbers of the parts that a collective overlaps with."""
        return tuple(number for number, part in enumerate(self._parts) if overlaps(part))

    def hide(self, wanted_s: float, among: Sequence[int]) -> float:
        """Hides collectives of `wanted_s` seconds behind parts with these numbers, in proportion to what is left of each.

        Returns the share of the collectives that is exposed.
        """
        left_s = sum((self._parts[number].left_s for number in among), 0.0)
        if left_s > wanted_s:
            for number in among:
                self._parts[number].left_s = self._parts[number].left_s * (1 - wanted_s / left_s)
            return 0.0
        for number in among:
            self._parts[number].left_s = 0.0
        return 1 - left_s / wanted_s if wanted_s > 0 else 0.0


def _parts(pass_: LayerPass, pass_s: float, seconds: Sequence[tuple[Operator, float]]) -> list[ComputePart]:
    """The parts of one pass, which add up to `pass_s` seconds. seconds: of each operator."""
    total_s = sum((operator_s for _, operator_s in seconds), 0.0)
    # operators alone may take longer than a pass in 8 bits or a measured one; equal times differ by rounding
    scale = pass_s / total_s if total_s > pass_s * (1 + 1e-9) else 1.0
    halves = (False, True) if pass_ is LayerPass.BACKWARD else (False,)
    parts = [
        ComputePart(pass_, operator, of_weights, scale * operator_s / len(halves))
        for operator, operator_s in seconds
        for of_weights in halves
    ]
    return [*parts, ComputePart(pass_, None, False, pass_s - scale * total_s)]
