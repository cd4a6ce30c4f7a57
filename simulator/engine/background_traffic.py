"""Background traffic in the events engine: tenants that use a part of shared resources, all the time or in cycles."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Final

import simpy

from scaleproof.simulator.common.speed_profile import Cycle
from scaleproof.simulator.engine.max_min import Allocator
from scaleproof.simulator.program import Resources

# Maximum number of switches of a run: some 10 us each on a 2-core virtual machine.
_MOST_SWITCHES: Final = 1_000_000
# Time at which a tenancy is switched on or off, its number, whether it is on afterwards, and its later switches.
_Switch = tuple[float, int, bool, Iterator[tuple[float, bool]]]


class Tenants:
    """Changes the capacities of an allocator's resources when tenancies begin and end, as long as any other event is
    pending."""

    def __init__(self, environment: simpy.Environment, allocator: Allocator, resources: Resources) -> None:
        self._environment, self._allocator, self._resources = environment, allocator, resources
        self._by_resource: dict[int, list[int]] = {}
        for number, tenancy in enumerate(resources.tenancies):
            self._by_resource.setdefault(tenancy.resource, []).append(number)
        self._on: set[int] = set()
        self._switches: list[_Switch] = []
        self._switches_left = _MOST_SWITCHES
        for number, tenancy in enumerate(resources.tenancies):
            self._plan(number, _switches(tenancy.cycle))
        self._switch()

    def _plan(self, number: int, switches: Iterator[tuple[float, bool]]) -> None:
        """Plans the next switch of a tenancy, if any."""
        for time_s, is_on in itertools.islice(switches, 1):
            heapq.heappush(self._switches, (time_s, number, is_on, switches))

    def schedule(self) -> None:
        """Schedules the next switch, if any other event is pending."""
        if self._switches and self._environment.peek() < math.inf:
            timer = self._environment.timeout(self._switches[0][0] - self._environment.now)
            timer.callbacks.append(lambda _: self._switch_and_schedule())

    def _switch_and_schedule(self) -> None:
        self._switch()
        self.schedule()

    def _switch(self) -> None:
        """Applies the switches that are due. Raises OverflowError if there are more than can be simulated."""
        changed: dict[int, None] = {}
        while self._switches and self._switches[0][0] <= self._environment.now:
            _, number, is_on, switches = heapq.heappop(self._switches)
            (self._on.add if is_on else self._on.discard)(number)
            changed[self._resources.tenancies[number].resource] = None
            self._plan(number, switches)
            self._switches_left -= 1
        if self._switches_left < 0:
            raise OverflowError(f"tenants begin and end more than {_MOST_SWITCHES:,} times")
        for resource in changed:
            on = [self._resources.tenancies[number] for number in self._by_resource[resource] if number in self._on]
            share = math.prod(1 - tenancy.share for tenancy in on)
            capacity = float(self._resources.capacity[resource]) * share
            self._allocator.change(resource, capacity, sum(tenancy.weight for tenancy in on))


def _switches(cycle: Cycle) -> Iterator[tuple[float, bool]]:
    """Times at which a cycle begins (True) and ends (False), in order; negative times are given as zero."""
    if math.isinf(cycle.period_s):
        yield cycle.begins_s, True
        if math.isfinite(cycle.lasts_s):
            yield cycle.begins_s + cycle.lasts_s, False
        return
    for period in itertools.count(math.floor(-cycle.begins_s / cycle.period_s)):
        begin_s = cycle.begins_s + period * cycle.period_s
        yield max(0.0, begin_s), True
        yield max(0.0, begin_s + cycle.lasts_s), False
