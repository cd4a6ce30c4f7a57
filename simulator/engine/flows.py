"""Who gets how much of what is shared: weighted max–min fair rates for links, cores and whatever else has a capacity.

Every activity progresses at a rate; while it runs it takes `per_unit · rate` of each resource it uses. Rates rise together,
in proportion to the activities' weights, until a resource is full or an activity is at its own maximum; those that are
stopped keep their rate and the others rise on (progressive filling; Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        """Progressive filling: the fair rate of every activity of one component."""
        left = {r: self._capacity[r] for r in resources}
        slope = {r: sum(a.weight * per_unit for a, per_unit in self._users[r].items()) for r in resources}
        rates: dict[Activity, float] = {}
        # highest cap first, so that the next to be capped is at the end
        rising = sorted(activities, key=lambda a: -a.max_rate / a.weight)
        level = 0.0
        while rising:
            full = {r: left[r] / slope[r] for r in resources if slope[r] > 0}
            rise = min(full.values(), default=math.inf)
            capped = rising[-1].max_rate / rising[-1].weight - level
            step = max(0.0, min(rise, capped))
            level += step
            for r in full:
                left[r] -= step * slope[r]
            bound = {r for r, room in full.items() if room <= step * (1 + _TOGETHER)} if rise <= capped else set()
            stopped = [a for a in rising if a.max_rate / a.weight <= level * (1 + _TOGETHER) or bound.intersection(_used(a))]
            for activity in stopped:
                rates[activity] = min(activity.max_rate, level * activity.weight)
                for use in activity.uses:
                    slope[use.resource] -= activity.weight * use.per_unit
            rising = [a for a in rising if a not in rates]
            for r in bound:
                slope[r] = 0.0
        return rates

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
