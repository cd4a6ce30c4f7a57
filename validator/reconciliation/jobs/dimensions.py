"""The parallel dimension that a traced collective belongs to, by its members, its group's name or its size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Final

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.layout.mesh import Axis
from scaleproof.validator.calibration.imports.kineto import TracedCollective

UNKNOWN: Final = "unknown"
# Names that torchtitan, DeviceMesh and Megatron-LM give to groups, by dimension.
_NAMES: Final = (
    ("EP", re.compile(r"(?:^|[_\W])(?:ep|expert)", re.I)),
    ("TP", re.compile(r"(?:^|[_\W])tp\b|tensor[_ ]model|tensor[_ ]parallel", re.I)),
    ("CP", re.compile(r"(?:^|[_\W])cp\b|context[_ ]parallel", re.I)),
    ("PP", re.compile(r"(?:^|[_\W])pp\b|pipeline", re.I)),
    ("DP", re.compile(r"(?:^|[_\W])dp(?:_|\b)|data[_ ]parallel|fsdp", re.I)),
)
# Dimensions whose collectives are parts of passes: predictions count them as computation of the forward and backward pass.
IN_PASSES: Final = ("TP", "CP", "EP")
_AXES: Final[dict[str, tuple[Axis, ...]]] = {
    "TP": ("tensor",), "CP": ("context",), "PP": ("stages",), "DP": ("workers", "context"),
}  # fmt: skip


class Dimensions:
    """Dimensions of the collectives of a scenario's ranks."""

    def __init__(self, scenario: Scenario) -> None:
        strategy, plan = scenario.strategy, scenario.strategy.plan
        self._sizes: dict[Axis, int] = {
            "tensor": plan.tensor, "context": plan.context, "workers": strategy.workers, "stages": strategy.stages,
        }  # fmt: skip
        self._order: Sequence[Axis] = plan.order
        self._expert = plan.expert
        self._active = [name for name, axes in _AXES.items() if self._size(axes) > 1] + ["EP"] * (plan.expert > 1)
        self._groups = {members: name for name in _AXES if name in self._active for members in self._groups_of(_AXES[name])}
        # without their context ranks, too
        self._groups |= dict.fromkeys(self._groups_of(("workers",)), "DP")

    def of(self, exchange: TracedCollective) -> str:
        """Label of the dimension; `UNKNOWN` if it is ambiguous."""
        if len(self._active) == 1:
            return self._active[0]
        if exchange.op == "alltoall" and "EP" in self._active:
            return "EP"
        members = frozenset(exchange.members)
        if members in self._groups:
            return self._groups[members]
        named = [name for name, pattern in _NAMES if name in self._active and pattern.search(exchange.description)]
        if named:
            return named[0]
        if exchange.op == "sendrecv":
            return "PP" if "PP" in self._active and "CP" not in self._active else UNKNOWN
        sizes = {name: self._expert if name == "EP" else self._size(_AXES[name]) for name in self._active}
        matching = [name for name, size in sizes.items() if size == exchange.size]
        return matching[0] if len(matching) == 1 else UNKNOWN

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
