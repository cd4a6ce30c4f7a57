"""The parallel dimension that a traced collective belongs to, by its members, its group's name or its size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Final

from scaleproof.simulator.common.communication import UNKNOWN, Collective, Dimension, number_of
from scaleproof.simulator.parallelism.mesh import Axis
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.kineto import TracedCollective

# Names that torchtitan, DeviceMesh and Megatron-LM give to groups, by dimension.
_NAMES: Final = (
    (Dimension.EXPERT, re.compile(r"(?:^|[_\W])(?:ep|expert)", re.I)),
    (Dimension.TENSOR, re.compile(r"(?:^|[_\W])tp\b|tensor[_ ]model|tensor[_ ]parallel", re.I)),
    (Dimension.CONTEXT, re.compile(r"(?:^|[_\W])cp\b|context[_ ]parallel", re.I)),
    (Dimension.PIPELINE, re.compile(r"(?:^|[_\W])pp\b|pipeline", re.I)),
    (Dimension.DATA, re.compile(r"(?:^|[_\W])dp(?:_|\b)|data[_ ]parallel|fsdp", re.I)),
)
_AXES: Final[dict[Dimension, tuple[Axis, ...]]] = {
    Dimension.TENSOR: ("tensor",),
    Dimension.CONTEXT: ("context",),
    Dimension.PIPELINE: ("stages",),
    Dimension.DATA: ("workers", "context"),
}
# What collectives of replicas are called by ZeRO's stage.
_REPLICAS: Final = (Dimension.DATA, Dimension.ZERO, Dimension.ZERO, Dimension.FSDP)


class Dimensions:
    """Dimensions of the collectives of a scenario's ranks."""

    def __init__(self, scenario: Scenario) -> None:
        strategy, plan = scenario.strategy, scenario.strategy.plan
        self._sizes: dict[Axis, int] = {
            "tensor": plan.tensor, "context": plan.context, "workers": strategy.workers, "stages": strategy.stages,
        }  # fmt: skip
        self._order: Sequence[Axis] = plan.order
        self._expert = plan.expert
        self._active = [dimension for dimension, axes in _AXES.items() if self._size(axes) > 1]
        self._active += [Dimension.EXPERT] * (plan.expert > 1)
        found = [dimension for dimension in _AXES if dimension in self._active]
        self._groups = {members: dimension for dimension in found for members in self._groups_of(_AXES[dimension])}
        # without their context ranks, too
        self._groups |= dict.fromkeys(self._groups_of(("workers",)), Dimension.DATA)
        self._replicas = _REPLICAS[scenario.training.zero]
        self._is_sequence_parallel = plan.sequence_parallel

    def number(self, exchange: TracedCollective) -> int:
        """Number of the dimension and collective, as spans name them; −1 if one of them is ambiguous."""
        dimension = self._of(exchange)
        if dimension is None or exchange.op is None:
            return UNKNOWN
        if dimension == Dimension.DATA:
            dimension = self._replicas
        elif dimension == Dimension.TENSOR and self._is_sequence_parallel and exchange.op in ("all_gather", "reduce_scatter"):
            dimension = Dimension.SEQUENCE
        return number_of(dimension, Collective.of(exchange.op))

    def _of(self, exchange: TracedCollective) -> Dimension | None:
        if len(self._active) == 1:
            return self._active[0]
        if exchange.op == "alltoall" and Dimension.EXPERT in self._active:
            return Dimension.EXPERT
        members = frozenset(exchange.members)
        if members in self._groups:
            return self._groups[members]
        named = [one for one, pattern in _NAMES if one in self._active and pattern.search(exchange.description)]
        if named:
            return named[0]
        if exchange.op == "sendrecv":
            is_pipeline = Dimension.PIPELINE in self._active and Dimension.CONTEXT not in self._active
            return Dimension.PIPELINE if is_pipeline else None
        sizes = {one: self._expert if one == Dimension.EXPERT else self._size(_AXES[one]) for one in self._active}
        matching = [one for one, size in sizes.items() if size == exchange.size]
        return matching[0] if len(matching) == 1 else None

    def _size(self, axes: Sequence[Axis]) -> int:
        result = 1
        for axis in axes:
            result *= self._sizes[axis]
        return result

    def _groups_of(self, axes: Sequence[Axis]) -> set[frozenset[int]]:
        """Groups of ranks that differ only in their places on `axes`; ranks are numbered along `order`, innermost first."""
        groups: dict[tuple[int, ...], set[int]] = {}
        outermost_first = self._order[::-1]
        for rank, place in enumerate(product(*(range(self._sizes[axis]) for axis in outermost_first))):
            key = tuple(number for axis, number in zip(outermost_first, place, strict=True) if axis not in axes)
            groups.setdefault(key, set()).add(rank)
        return {frozenset(members) for members in groups.values() if len(members) > 1}
