"""Tenants: others who take a part of what tasks share, some of them only at times. Of the events engine."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Final

import simpy

from scaleproof.simulator.engine.max_min import Allocator
from scaleproof.simulator.program import Resources
from scaleproof.simulator.program.speed_profile import Cycle

# Turns of a run: some 10 us each on a 2-core virtual machine.
_MOST_TURNS: Final = 1_000_000
# when it begins or ends, number of the tenancy, whether it is on from then, and when it begins or ends after that
_Turn = tuple[float, int, bool, Iterator[tuple[float, bool]]]


class Tenants:
    """Takes from an allocator's resources what tenancies take while they are on, for as long as anything else goes on."""

    def __init__(self, environment: simpy.Environment, allocator: Allocator, resources: Resources) -> None:
        self._environment, self._allocator, self._resources = environment, allocator, resources
        self._of_resource: dict[int, list[int]] = {}
        for number, tenancy in enumerate(resources.tenancies):
            self._of_resource.setdefault(tenancy.resource, []).append(number)
        self._on: set[int] = set()
        self._turns: list[_Turn] = []
        self._left = _MOST_TURNS
        for number, tenancy in enumerate(resources.tenancies):
            self._plan(number, _turns(tenancy.cycle))
        self._turn()

    def _plan(self, number: int, turns: Iterator[tuple[float, bool]]) -> None:
        """What a tenancy does next, if anything."""
        for time_s, is_on in itertools.islice(turns, 1):
            heapq.heappush(self._turns, (time_s, number, is_on, turns))

    def go_on(self) -> None:
        """Waits for the next turn, if anything else is under way."""
        if self._turns and self._environment.peek() < math.inf:
            timer = self._environment.timeout(self._turns[0][0] - self._environment.now)
            timer.callbacks.append(lambda _: self._turn_and_go_on())

    def _turn_and_go_on(self) -> None:
        self._turn()
        self.go_on()

    def _turn(self) -> None:
        """Begins and ends what is due. Raises OverflowError where that happens too often to be followed."""
        changed: dict[int, None] = {}
        while self._turns and self._turns[0][0] <= self._environment.now:
            _, number, is_on, turns = heapq.heappop(self._turns)
            (self._on.add if is_on else self._on.discard)(number)
            changed[self._resources.tenancies[number].resource] = None
            self._plan(number, turns)
            self._left -= 1
        if self._left < 0:
            raise OverflowError(f"tenants begin and end more than {_MOST_TURNS:,} times")
        for resource in changed:
            on = [self._resources.tenancies[number] for number in self._of_resource[resource] if number in self._on]
            left = math.prod(1 - tenancy.share for tenancy in on)
            self._allocator.change(resource, float(self._resources.capacity[resource]) * left, sum(one.weight for one in on))


def _turns(cycle: Cycle) -> Iterator[tuple[float, bool]]:
    """When it begins and ends, in order; what it did before the beginning is told as if it happened then."""
    if math.isinf(cycle.period_s):
        yield cycle.begins_s, True
        if math.isfinite(cycle.lasts_s):
            yield cycle.begins_s + cycle.lasts_s, False
        return
    for period in itertools.count(math.floor(-cycle.begins_s / cycle.period_s)):
        begin_s = cycle.begins_s + period * cycle.period_s
        yield max(0.0, begin_s), True
        yield max(0.0, begin_s + cycle.lasts_s), False
