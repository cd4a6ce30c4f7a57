"""One resource and the activities that use nothing else: whoever starts or ends, nobody else is touched.

Activities that are held back alike progress at one rate per weight, the level. The queue counts the level's integral over time,
its virtual time: an activity that starts at a count ends at that count plus amount / weight, whatever the level does meanwhile
(generalised processor sharing; Parekh & Gallager, IEEE/ACM Transactions on Networking 1(3), 1993). So a start or an end costs
one operation on a heap, and a new level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

import simpy
from simpy.events import NORMAL

# Activities that would end within this share of the time already passed end together: float rounding, not physics.
TOGETHER: Final = 1e-12

# count at which it ends, number of its start, weight, use per unit of its rate, what to call; one is made for every start
_Entry = tuple[float, int, float, float, Callable[[], None]]


class Alarm(simpy.Event):
    """An event that its owner puts on the schedule, and again once it has happened, where a timeout would be made anew."""

    _ok = True
    _value: Any = None


class FairQueue:
    """Shares one resource among activities that all have the same `limit`, the highest rate per weight that they can take."""

    def __init__(self, environment: simpy.Environment, capacity: float, incast: float) -> None:
        self.limit = math.inf
        self._environment = environment
        self._capacity = capacity
        self._incast = incast
        self.others = 0.0  # weight of what else is there, which has no limit and never ends
        self._entries: list[_Entry] = []
        self._started = 0
        self._users = 0.0
        self._slope = 0.0  # how much more of the resource is used for each unit that the level rises
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
        """What is left of the resource's capacity when its activities use so much per unit of their rates; see Resources."""
        return self._capacity / (1 + self._incast * max(0.0, sum(users) - 1)) if self._incast else self._capacity

    def alone(self, weight: float, per_unit: float) -> float:
        """The rate of an activity that shares with nobody but others."""
        capacity = self.capacity((per_unit,))
        return weight * capacity / (weight * per_unit + self.others) if self.others else capacity / per_unit

    def change(self, capacity: float, others: float) -> None:
        """From now on it has this capacity, and so much else is there."""
        now_s = self._environment.now
        count = self._count + self._level * (now_s - self._since_s)
        self._capacity, self.others = capacity, others
        if self._entries:
            self._proceed(now_s, count)

    def start(self, amount: float, limit: float, weight: float, per_unit: float, finished: Callable[[], None]) -> None:
        """Starts an activity that uses `per_unit` of the resource per unit of its rate; calls `finished` at its end.

        `limit` must be that of the activities already there.
        """
        now_s = self._environment.now
        if self._entries:
            count = self._count + self._level * (now_s - self._since_s)
        else:
            # from zero whenever nobody is there, so that rounding does not add up
            count = self._slope = self._users = 0.0
            self.limit = limit
        self._started += 1
        heappush(self._entries, (count + amount / weight, self._started, weight, per_unit, finished))
        self._slope += weight * per_unit
        self._users += per_unit
        self._proceed(now_s, count)

    def take_out(self) -> Iterator[tuple[float, float, float, Callable[[], None]]]:
        """Takes all activities out, in the order in which they would end: the amount that remains, then as `start` has it."""
        count = self._count + self._level * (self._environment.now - self._since_s)
        entries, self._entries = sorted(self._entries), []
        for end, _, weight, per_unit, finished in entries:
            yield max(0.0, end - count) * weight, weight, per_unit, finished

    def _proceed(self, now_s: float, count: float) -> None:
        """Goes on from `count` at the level of those who are there now."""
        self._since_s = now_s
        self._count = count
        capacity = self.capacity((self._users,)) if self._incast else self._capacity
        level = capacity / (self._slope + self.others)
        if level > self.limit:
            level = self.limit
        self._level = level
        delay_s = (self._entries[0][0] - count) / level
        self._next_s = next_s = now_s + delay_s
        # SimPy cannot take an event back: one that comes too early is set again then, one that would come too late is given up
        if next_s < self._rings_s:
            if self._rings_s < math.inf:
                self._alarm = Alarm(self._environment)
            self._set_alarm(now_s, delay_s if delay_s > 0 else 0.0)

    def _set_alarm(self, now_s: float, delay_s: float) -> None:
        # the sum that the environment makes, so that no time needs asking for when the alarm rings
        self._next_s = self._rings_s = now_s + delay_s
        self._alarm.callbacks = self._on_ring
        self._environment.schedule(self._alarm, NORMAL, delay_s)

    def _ring(self, alarm: simpy.Event) -> None:
        """Ends the activities whose time has come."""
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
