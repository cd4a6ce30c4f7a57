"""Who gets how much of what is shared: weighted max–min fair rates for links, cores and whatever else has a capacity.

Every activity progresses at a rate; while it runs it takes `per_unit · rate` of each resource it uses. Rates rise together,
in proportion to the activities' weights, until a resource is full or an activity is at its own maximum; those that are
stopped keep their rate and the others rise on (progressive filling; Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from simulator.program import Use

# After everything else that happens at the same instant, so that changes of one instant are settled together.
_LAST: Final = cast(EventPriority, 2)
# Activities that would end within this share of the time already passed end together: float rounding, not physics.
_TOGETHER: Final = 1e-12


@dataclass(eq=False, slots=True)
class Activity:
    """Something that progresses: seconds of work, or bytes. `finished` is called when `remaining` reaches zero."""

    remaining: float
    max_rate: float
    weight: float
    uses: Sequence[Use]
    finished: Callable[[], None]
    rate: float = 0.0
    since_s: float = 0.0
    timer: object = field(default=None)

    def ends_s(self) -> float:
        """When it ends if its rate stays."""
        return self.since_s + self.remaining / self.rate if self.rate > 0 else math.inf


class Allocator:
    """Shares resources among activities; recomputes only what a start or an end touches."""

    def __init__(self, environment: simpy.Environment, capacity: NDArray[np.float64] | Sequence[float]) -> None:
        self._environment = environment
        self._capacity = [float(c) for c in capacity]
        self._users: list[dict[Activity, float]] = [{} for _ in self._capacity]
        self._changed: dict[int, None] = {}

    def start(self, amount: float, max_rate: float, weight: float, uses: Sequence[Use], finished: Callable[[], None]) -> None:
        """Starts an activity of `amount`; calls `finished` at its end. `uses` may not be empty."""
        activity = Activity(amount, max_rate, weight, uses, finished, since_s=self._environment.now)
        alone = True
        for use in uses:
            users = self._users[use.resource]
            alone = alone and not users
            users[activity] = users.get(activity, 0.0) + use.per_unit
        if alone:
            # nobody to share with: no need to wait for what else this instant brings
            activity.rate = min(max_rate, *(self._capacity[r] / self._users[r][activity] for r in _used(activity)))
            self._wake([activity])
        else:
            self._touch(uses)

    def _touch(self, uses: Sequence[Use]) -> None:
        if uses and not self._changed:
            settle = simpy.Event(self._environment)
            settle._ok, settle._value = True, None
            settle.callbacks = [lambda _: self._settle()]
            self._environment.schedule(settle, priority=_LAST)
        self._changed.update((use.resource, None) for use in uses)

    def _settle(self) -> None:
        """New rates for every component of activities and resources that something has changed in."""
        changed, self._changed = self._changed, {}
        seen: set[int] = set()
        for resource in changed:
            if resource not in seen:
                resources, activities = self._component(resource)
                seen.update(resources)
                if activities:
                    self._share(resources, activities)

    def _component(self, resource: int) -> tuple[list[int], list[Activity]]:
        """Everything connected to `resource` through activities, in a fixed order."""
        resources, activities = {resource: None}, dict[Activity, None]()
        queue = [resource]
        while queue:
            for activity in self._users[queue.pop()]:
                if activity not in activities:
                    activities[activity] = None
                    for use in activity.uses:
                        if use.resource not in resources:
                            resources[use.resource] = None
                            queue.append(use.resource)
        return list(resources), list(activities)

    def _share(self, resources: list[int], activities: list[Activity]) -> None:
        now_s = self._environment.now
        for activity in activities:
            activity.remaining = max(0.0, activity.remaining - activity.rate * (now_s - activity.since_s))
            activity.since_s = now_s
        for activity, rate in self._fill(resources, activities).items():
            activity.rate = rate
        self._wake(activities)

    def _wake(self, activities: list[Activity]) -> None:
        """Looks at the activities of a component again when the first of them ends."""
        next_s = min(activity.ends_s() for activity in activities)
        timer = self._environment.timeout(max(0.0, next_s - self._environment.now))
        for activity in activities:
            activity.timer = timer
        timer.callbacks.append(lambda _: self._finish(activities, timer))

    def _fill(self, resources: list[int], activities: list[Activity]) -> dict[Activity, float]:
        """Progressive filling: the fair rate of every activity of one component.

        The level is the rate per weight that all rising activities have. A resource is full at the level where what its
        stopped users leave is used up by the rising ones; that level only rises as more are stopped, so a heap of levels
        needs looking at again only where its smallest entry is out of date.
        """
        left = {r: self._capacity[r] for r in resources}
        rates: dict[Activity, float] = {}
        # resources before activities at the same level; numbers, so that activities are never compared
        levels = [(left[r] / self._slope(r, rates), 0, r) for r in resources if self._users[r]]
        levels += [(a.max_rate / a.weight, 1, i) for i, a in enumerate(activities) if a.max_rate < math.inf]
        heapq.heapify(levels)

        def stop(activity: Activity, rate: float) -> None:
            rates[activity] = rate
            for use in activity.uses:
                left[use.resource] = max(0.0, left[use.resource] - rate * use.per_unit)

        while len(rates) < len(activities):
            level, is_cap, number = heapq.heappop(levels)
            if is_cap:
                if (activity := activities[number]) not in rates:
                    stop(activity, activity.max_rate)
            elif slope := self._slope(number, rates):
                now = left[number] / slope
                if now > level * (1 + _TOGETHER):
                    heapq.heappush(levels, (now, 0, number))
                else:
                    for activity in [a for a in self._users[number] if a not in rates]:
                        stop(activity, level * activity.weight)
        return rates

    def _slope(self, resource: int, stopped: Container[Activity]) -> float:
        """How much more of a resource is used for each unit that the level rises."""
        return sum(a.weight * per_unit for a, per_unit in self._users[resource].items() if a not in stopped)

    def _finish(self, activities: list[Activity], timer: object) -> None:
        """Ends the activities of a component whose time has come, unless the component has changed since."""
        now_s = self._environment.now
        ended = [a for a in activities if a.timer is timer and a.ends_s() <= now_s * (1 + _TOGETHER)]
        for activity in ended:
            activity.timer = None
            for use in activity.uses:
                self._users[use.resource].pop(activity, None)
        for activity in ended:
            self._touch([use for use in activity.uses if self._users[use.resource]])
            activity.finished()


def _used(activity: Activity) -> set[int]:
    return {use.resource for use in activity.uses}


def finish_times(
    bandwidth_Bps: Sequence[float] | NDArray[np.float64],
    routes: Sequence[Sequence[int]],
    sizes_bytes: Sequence[float] | NDArray[np.float64],
    start_s: Sequence[float] | NDArray[np.float64],
) -> NDArray[np.float64]:
    """When each flow ends, shape (flows,), where flows share links max–min fairly.

    bandwidth_Bps: of each link. routes: for each flow the links it passes, each counted once however often it is named; a
    flow over no link ends when it starts. sizes_bytes, start_s: of each flow. Raises ValueError for lengths that differ,
    links that do not exist, bandwidths that are not positive, and sizes or starts that are negative or not finite.
    """
    capacity, sizes, starts = (np.asarray(values, dtype=np.float64) for values in (bandwidth_Bps, sizes_bytes, start_s))
    _check_flows(capacity, routes, sizes, starts)
    environment = simpy.Environment()
    allocator = Allocator(environment, capacity)
    ends_s = starts.copy()

    def flow(index: int) -> None:
        def finished() -> None:
            ends_s[index] = environment.now

        uses = [Use(link) for link in dict.fromkeys(routes[index])]
        allocator.start(float(sizes[index]), math.inf, 1.0, uses, finished)

    def launcher(index: int) -> Callable[[simpy.Event], None]:
        return lambda _: flow(index)

    for index in range(len(starts)):
        if len(routes[index]) and sizes[index] > 0:
            environment.timeout(starts[index]).callbacks.append(launcher(index))
    environment.run()
    return ends_s


def _check_flows(
    capacity: NDArray[np.float64], routes: Sequence[Sequence[int]], sizes: NDArray[np.float64], starts: NDArray[np.float64]
) -> None:
    if not len(routes) == len(sizes) == len(starts):
        raise ValueError(f"{len(routes)} routes, {len(sizes)} sizes and {len(starts)} starts; give one of each per flow")
    if not (np.isfinite(capacity).all() and (capacity > 0).all()):
        raise ValueError("a link's bandwidth is zero, negative or not finite; give bytes per second above zero")
    for name, values in (("size", sizes), ("start", starts)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"a flow's {name} is negative or not finite")
    for index, route in enumerate(routes):
        for link in route:
            if not 0 <= link < len(capacity):
                raise ValueError(f"flow {index} passes link {link}, and there are {len(capacity)}")
