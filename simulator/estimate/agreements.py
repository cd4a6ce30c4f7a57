"""Agreements: how long gradients are summed, states and parameters shared out and gathered.

What a stage of the model sums depends on how its layers are divided and where buckets close: its pattern. How long that takes
depends on the group of ranks that sum. Each is worked out once, and a product of both gives all combinations.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.algorithms import Group, Op
from simulator.estimate.wires import Wires
from simulator.strategy.agreement import ends, units, with_copies
from simulator.strategy.costs import Job
from simulator.strategy.plan import Plan

Times = NDArray[np.float64]

# What ranks have alike: what all replicas have, or a mixture's experts.
_KEEPERS: Final = ("replicas", "experts")
# What a pattern tells: all sums of a step's last pass, those of the unit whose gradients come last, gathers before a pass, the
# first of these, gathers after the step.
SUMS, LAST, GATHERS, OPENING, AFTER = range(5)

# Of larger collectives powers of two are asked for, and the largest: between them time is near to a line.
_POWERS: Final = 27, 30
_LARGE_BYTES: Final = 2.0 ** _POWERS[0]

_Sizes = Counter[tuple[str, float]]


class Pattern(NamedTuple):
    """What ranks with a stage of the model sum and gather: bytes by keepers, and how often. first: layers of the unit whose
    gradients come first. parameters: by keepers."""

    sums: _Sizes
    last: _Sizes
    gathers: _Sizes
    opening: _Sizes
    after: _Sizes
    first: range
    parameters: tuple[int, int]

    def sizes(self, field: int) -> _Sizes:
        """One of the first five."""
        found: _Sizes = self[field]  # type: ignore[assignment]
        return found


class Held:
    """A model's layers, as a plan's pipeline ranks have them. pair: those with the first and the last stage; copied: parameters
    that both have."""

    def __init__(self, plan: Plan, job: Job) -> None:
        self.layers = layers = with_copies(job.layers, plan)
        self.pair, self.copied = ends(plan), layers[-1].parameters - job.layers[-1].parameters
        experts = [layer.expert_parameters if plan.expert > 1 else 0 for layer in layers]
        replicas = [layer.parameters - kept for layer, kept in zip(layers, experts, strict=True)]
        self._running = [list(itertools.accumulate(each, initial=0)) for each in (replicas, experts)]

    def parameters(self, stage: range) -> tuple[int, int]:
        """Of what all workers have, and of experts that some have."""
        replicas, experts = (running[stage.stop] - running[stage.start] for running in self._running)
        return replicas, experts


def _pattern(held: Held, plan: Plan, job: Job, stage: range) -> Pattern:
    """Of a stage of the model. job: with the ZeRO stage; of 1 and 2 `after` is told, which others leave out."""
    found = units(held.layers, stage, plan, job)[::-1]
    size = plan.gradient_bytes or job.element_bytes
    kept = [held.parameters(unit.layers) for unit in found]
    sums = [
        [*(("replicas", float(sum(one.tensors) * size)) for one in unit.buckets), *_given((0, experts), size)]
        for unit, (_, experts) in zip(found, kept, strict=True)
    ]
    gathers = [_given(each, job.element_bytes) for each in kept] if job.zero == 3 else [[]]
    parameters = held.parameters(stage)
    return Pattern(
        Counter(itertools.chain.from_iterable(sums)), Counter(sums[-1]), Counter(itertools.chain.from_iterable(gathers)),
        Counter(gathers[-1]), Counter(_given(parameters, job.element_bytes)), found[0].layers, parameters,
    )  # fmt: skip


def _given(parameters: tuple[int, int], size: int) -> list[tuple[str, float]]:
    return [(name, float(count * size)) for name, count in zip(_KEEPERS, parameters, strict=True) if count]


class Agreeing:
    """What all patterns of layers that are divided alike take on all groups of ranks that share them.

    patterns: in the order in which `add` gave their numbers.
    """

    def __init__(self, wires: Wires, algorithm: str | None) -> None:
        self._wires, self._algorithm = wires, algorithm
        self.patterns: list[Pattern] = []
        self._held: dict[tuple[int, int, str], Held] = {}
        self._groups: list[dict[str, tuple[Group, int]]] = []
        self._group_of: dict[object, int] = {}
        self._asked: dict[tuple[int, Op, str, float], int] = {}
        self._known: dict[tuple[Op, str], tuple[int, list[float]]] = {}
        self._often: dict[tuple[tuple[int, ...], str, int], Times] = {}

    def add(self, plan: Plan, job: Job, stages: Sequence[range]) -> int:
        """The number of the first of the patterns of stages, which follow one another."""
        first = len(self.patterns)
        self.patterns.extend(_pattern(self.held(plan, job), plan, job, stage) for stage in stages)
        return first

    def held(self, plan: Plan, job: Job) -> Held:
        """The layers as a plan's ranks have them."""
        key = plan.stages, plan.chunks, plan.schedule
        if key not in self._held:
            self._held[key] = Held(plan, job)
        return self._held[key]

    def group(self, plan: Plan, devices: int) -> int:
        """The number of the groups that the ranks of a plan are in."""
        grid = plan.grid(devices)
        key = plan.tensor, plan.context, plan.workers, plan.expert, plan.order, grid.stride("workers")
        if key not in self._group_of:
            self._group_of[key] = len(self._groups)
            beside = grid.beside([grid.rank(0, 0) + i * grid.stride("tensor") for i in range(grid.tensor)])
            groups = {"replicas": (grid.replicas_of(0, 0, plan.sharing), beside)}
            if plan.expert > 1:
                groups["experts"] = grid.replicas_of(0, 0, plan.workers // plan.expert, plan.expert), beside
            self._groups.append(groups)
        return self._group_of[key]

    def ask(self, group: int, op: Op) -> None:
        """Asks for all patterns' sums or gathers on a group."""
        for keepers, (ranks, beside) in self._groups[group].items():
            algorithm = self._algorithm if op == "all_reduce" else None
            for size_bytes in _told(self._sizes(op, keepers)):
                key = group, op, keepers, size_bytes
                if key not in self._asked:
                    self._asked[key] = self._wires.collective(op, ranks, size_bytes, beside, algorithm)

    def _sizes(self, op: Op, keepers: str) -> list[float]:
        if (op, keepers) not in self._known or self._known[op, keepers][0] != len(self.patterns):
            asked = (each.sizes(field) for each in self.patterns for field in _fields(op))
            found = {size for sizes in asked for name, size in sizes if name == keepers}
            self._known[op, keepers] = len(self.patterns), sorted(found)
        return self._known[op, keepers][1]

    def seconds(self, groups: Sequence[int], op: Op, fields: Sequence[int], answers: Times) -> Times:
        """What each pattern's fields take on each group, shape (fields, groups, patterns)."""
        total: Times = np.zeros((len(fields), len(groups), len(self.patterns)))
        for keepers in _KEEPERS:
            each_s = self._each_s(groups, op, keepers, answers)
            for one, field in zip(total, fields, strict=True):
                one += each_s @ self._counts(op, keepers, field).T
        return total

    def _counts(self, op: Op, keepers: str, field: int) -> Times:
        """How often each pattern has collectives of each size in a field, shape (patterns, sizes)."""
        key = _fields(op), keepers, field
        if key not in self._often:
            sizes = self._sizes(op, keepers)
            place = {size: number for number, size in enumerate(sizes)}
            items = [
                (row, place[size], count)
                for row, each in enumerate(self.patterns)
                for (name, size), count in each.sizes(field).items()
                if name == keepers
            ]
            rows, columns, counts = np.array(items, dtype=np.int64).reshape(len(items), 3).T
            self._often[key] = np.zeros((len(self.patterns), len(sizes)))
            self._often[key][rows, columns] = counts
        return self._often[key]

    def _each_s(self, groups: Sequence[int], op: Op, keepers: str, answers: Times) -> Times:
        """A collective of each size on each group, shape (groups, sizes)."""
        sizes = self._sizes(op, keepers)
        told, result = _told(sizes), np.zeros((len(groups), len(sizes)))
        for row, group in enumerate(groups):
            if keepers in self._groups[group] and sizes:
                result[row] = np.interp(sizes, told, [answers[self._asked[group, op, keepers, size]] for size in told])
        return result


def _fields(op: Op) -> tuple[int, ...]:
    """In which all sizes are of which it is asked."""
    return (GATHERS, AFTER) if op == "all_gather" else (SUMS,)


def _told(sizes: Sequence[float]) -> list[float]:
    """Sizes from which those of some, in ascending order, follow."""
    few = [size for size in sizes if size < _LARGE_BYTES]
    if len(few) == len(sizes):
        return few
    powers = (2.0**power for power in range(_POWERS[0], _POWERS[1] + 1))
    return [*few, *(size for size in powers if size < sizes[-1]), sizes[-1]]
