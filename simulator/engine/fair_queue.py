"""Fair sharing of one resource among activities that use no other resource, independently of all other resources.

The activities progress at one rate per weight, the level. The integral of the level over time is the virtual time: an activity
that starts at a virtual time ends at this virtual time plus amount / weight, however the level changes meanwhile (generalised
processor sharing; Parekh & Gallager, IEEE/ACM Transactions on Networking 1(3), 1993). A start or an end therefore costs one
heap operation and a new level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

import simpy
from simpy.events import NORMAL

# Times that differ by less than this share of the time are equal: float rounding, not physics.
TOGETHER: Final = 1e-12

# virtual time at which an activity ends, number of its start, weight, use per unit of its rate, callback
_Entry = tuple[float, int, float, float, Callable[[], None]]


class Alarm(simpy.Event):
    """An event that can be scheduled again after it has occurred, which a timeout cannot."""

    _ok = True
    _value: Any = None


class FairQueue:
    """Shares one resource among activities with the same `limit`, which is their maximum rate per weight."""

    def __init__(self, environment: simpy.Environment, capacity: float, incast: float) -> None:
        self.limit = math.inf
        self._environment = environment
        self._capacity = capacity
        self._incast = incast
        self.others = 0.0  # weight of background traffic, which has no limit and never ends
        self._entries: list[_Entry] = []
        self._started = 0
        self._users = 0.0
        self._slope = 0.0  # use of the resource per unit of the level
        self._level = 0.0
        self._count = 0.0
        self._since_s = 0.0
        self._next_s = math.inf
        self._rings_s = math.inf
        self._alarm = Alarm(environment)
        self._on_ring: list[Callable[[Any], None]] = [self._ring]

    def __len__(self) -> int:
        return len(self._entries)

    def capacity(self, users: Iterable[float]) -> float:
        """Capacity of the resource with incast. users: use per unit of rate of its activities; see Resources."""
        return self._capacity / (1 + self._incast * max(0.0, sum(users) - 1)) if self._incast else self._capacity

    def alone(self, weight: float, per_unit: float) -> float:
        """Rate of an activity that shares only with background traffic."""
        capacity = self.capacity((per_unit,))
        return weight * capacity / (weight * per_unit + self.others) if self.others else capacity / per_unit

    def change(self, capacity: float, others: float) -> None:
        """Sets the capacity and the weight of background traffic from now on."""
        now_s = self._environment.now
        count = self._count + self._level * (now_s - self._since_s)
        self._capacity, self.others = capacity, others
        if self._entries:
            self._proceed(now_s, count)

    def start(self, amount: float, limit: float, weight: float, per_unit: float, finished: Callable[[], None]) -> None:
        """Starts an activity that uses `per_unit` of the resource per unit of its rate; calls `finished` at its end.

        limit: maximum rate per weight, which must equal that of the present activities.
        """
        now_s = self._environment.now
        if self._entries:
            count = self._count + self._level * (now_s - self._since_s)
        else:
            # reset when there are no activities, so that rounding errors do not add up
            count = self._slope = self._users = 0.0
            self.limit = limit
        self._started += 1
        heappush(self._entries, (count + amount / weight, self._started, weight, per_unit, finished))
        self._slope += weight * per_unit
        self._users += per_unit
        self._proceed(now_s, count)

    def take_out(self) -> Iterator[tuple[float, float, float, Callable[[], None]]]:
        """Removes all activities, in the order of their ends: remaining amount, weight, per_unit and finished; see `start`."""
        count = self._count + self._level * (self._environment.now - self._since_s)
        entries, self._entries = sorted(self._entries), []
        for end, _, weight, per_unit, finished in entries:
            yield max(0.0, end - count) * weight, weight, per_unit, finished

    def _proceed(self, now_s: float, count: float) -> None:
        """Continues from virtual time `count` with the level of the present activities."""
        self._since_s = now_s
        self._count = count
        capacity = self.capacity((self._users,)) if self._incast else self._capacity
        level = capacity / (self._slope + self.others)
        if level > self.limit:
            level = self.limit
        self._level = level
        delay_s = (self._entries[0][0] - count) / level
        self._next_s = next_s = now_s + delay_s
        # SimPy cannot cancel events: an alarm that rings too early is set again then, one that would ring too late is replaced
        if next_s < self._rings_s:
            if self._rings_s < math.inf:
                self._alarm = Alarm(self._environment)
            self._set_alarm(now_s, delay_s if delay_s > 0 else 0.0)

    def _set_alarm(self, now_s: float, delay_s: float) -> None:
        # the same sum as in the environment, so that its time need not be read when the alarm rings
        self._next_s = self._rings_s = now_s + delay_s
        self._alarm.callbacks = self._on_ring
        self._environment.schedule(self._alarm, NORMAL, delay_s)

    def _ring(self, alarm: simpy.Event) -> None:
        """Ends the activities that are due."""
        if alarm is not self._alarm:
            return
        now_s = self._rings_s
        if now_s < self._next_s:
            self._set_alarm(now_s, self._next_s - now_s)
            return
        self._rings_s = math.inf
        count = self._count + self._level * (now_s - self._since_s)
        due = count + self._level * now_s * TOGETHER
        entries, ended = self._entries, []
        while entries and entries[0][0] <= due:
            _, _, weight, per_unit, finished = heappop(entries)
            self._slope -= weight * per_unit
            self._users -= per_unit
            ended.append(finished)
        if entries:
            self._proceed(now_s, count)
        for finished in ended:
            finished()
