"""Weighted max–min fair allocation of shared resources, such as links and cores.

Every activity progresses at a rate; while it runs it uses `per_unit · rate` of each of its resources. All rates rise together,
in proportion to the activities' weights, until a resource is full or an activity is at its own maximum; the activities that
this limits keep their rate, and the others rise further (progressive filling; Bertsekas & Gallager, Data Networks, section
6.5.2).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, cast

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import NORMAL, EventPriority

from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.common.equivalence import UsedLinks, classes, hashes
from scaleproof.simulator.program import Rows, Use

# Times that differ by less than this share of the time are equal: float rounding, not physics.
TOGETHER: Final = 1e-12

# virtual time at which an activity ends, number of its start, weight, use per unit of its rate, callback
_Entry = tuple[float, int, float, float, Callable[[], None]]


class Alarm(simpy.Event):
    """An event that can be scheduled again after it has occurred, which a timeout cannot."""

    _ok = True
    _value: Any = None


class FairQueue:
    """Shares one resource among activities that use no other, with the same `limit`, which is their maximum rate per weight.

    The activities progress at one rate per weight, the level. The integral of the level over time is the virtual time: an
    activity that starts at a virtual time ends at this virtual time plus amount / weight, however the level changes meanwhile
    (generalised processor sharing; Parekh & Gallager, IEEE/ACM Transactions on Networking 1(3), 1993). A start or an end
    therefore costs one heap operation and a new level.
    """

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


Amounts = NDArray[np.float64]

# After all other events at the same time, so that simultaneous changes are evaluated together.
_LAST: Final = cast(EventPriority, 2)


@dataclass(eq=False, slots=True)
class Activity:
    """Work in seconds, or a transfer in bytes. `finished` is called when `remaining` reaches zero.

    limit: maximum rate per weight.
    """

    remaining: float
    limit: float
    weight: float
    uses: Sequence[Use]
    finished: Callable[[], None]
    rate: float = 0.0
    since_s: float = 0.0
    timer: object = field(default=None)

    def ends_s(self) -> float:
        """Time in seconds at which the activity ends at its present rate."""
        return self.since_s + self.remaining / self.rate if self.rate > 0 else math.inf


class Allocator:
    """Shares resources among activities; recomputes only rates that a start or an end affects.

    A resource whose users use nothing else, and have the same limit, is managed by its FairQueue; resources that are connected
    through activities that use several are filled together.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        capacity: NDArray[np.float64] | Sequence[float],
        incast: NDArray[np.float64] | Sequence[float] | None = None,
    ) -> None:
        """capacity (positive and finite), incast (zero if absent): of each resource, see program.Resources."""
        loss = [0.0] * len(capacity) if incast is None else incast
        self._environment = environment
        self._queues = [FairQueue(environment, float(c), float(i)) for c, i in zip(capacity, loss, strict=True)]
        self._users: list[dict[Activity, float]] = [{} for _ in self._queues]
        self._changed: dict[int, None] = {}

    def start(self, amount: float, max_rate: float, weight: float, uses: Sequence[Use], finished: Callable[[], None]) -> None:
        """Starts an activity of `amount`; calls `finished` at its end. `uses` may not be empty."""
        limit = max_rate / weight
        if len(uses) == 1:
            resource, per_unit = uses[0]
            queue = self._queues[resource]
            if not self._users[resource] and (queue.limit == limit or not queue):
                queue.start(amount, limit, weight, per_unit, finished)
                return
        self._start_among_others(Activity(amount, limit, weight, uses, finished, since_s=self._environment.now))

    def change(self, resource: int, capacity: float, others: float) -> None:
        """Sets the capacity of a resource, and the weight of its background traffic, which has no limit, from now on."""
        self._queues[resource].change(capacity, others)
        if self._users[resource]:
            self._touch([Use(resource)])

    def _start_among_others(self, activity: Activity) -> None:
        alone = True
        for resource, per_unit in activity.uses:
            if self._queues[resource]:
                self._empty_queue(resource)
            users = self._users[resource]
            alone = alone and not users
            users[activity] = users.get(activity, 0.0) + per_unit
        if alone:
            # nothing to share: the rate does not depend on other events at the same time
            rates = [self._queues[resource].alone(activity.weight, per_unit) for resource, per_unit in activity.uses]
            activity.rate = min(activity.limit * activity.weight, *rates)
            self._wake([activity])
        else:
            self._touch(activity.uses)

    def _empty_queue(self, resource: int) -> None:
        """Moves the activities of a resource out of its FairQueue, since they now depend on other resources or limits."""
        queue, now_s = self._queues[resource], self._environment.now
        for remaining, weight, per_unit, finished in queue.take_out():
            activity = Activity(remaining, queue.limit, weight, (Use(resource, per_unit),), finished, since_s=now_s)
            self._users[resource][activity] = per_unit

    def _return_to_queue(self, resource: int) -> None:
        users, self._users[resource] = self._users[resource], {}
        for activity, per_unit in users.items():
            self._queues[resource].start(activity.remaining, activity.limit, activity.weight, per_unit, activity.finished)

    def _touch(self, uses: Sequence[Use]) -> None:
        if uses and not self._changed:
            settle = Alarm(self._environment)
            settle.callbacks = [lambda _: self._settle()]
            self._environment.schedule(settle, priority=_LAST)
        self._changed.update((use.resource, None) for use in uses)

    def _settle(self) -> None:
        """Computes new rates for all connected components of activities and resources with changes."""
        changed, self._changed = self._changed, {}
        seen: set[int] = set()
        for resource in changed:
            if resource not in seen:
                resources, activities = self._component(resource)
                seen.update(resources)
                if activities:
                    self._share(resources, activities)

    def _component(self, resource: int) -> tuple[list[int], list[Activity]]:
        """The resources and activities that are connected to `resource` through activities, in a fixed order."""
        resources, activities = {resource: None}, dict[Activity, None]()
        queue = [resource]
        while queue:
            for activity in self._users[queue.pop()]:
                if activity not in activities:
                    activities[activity] = None
                    for used, _ in activity.uses:
                        if used not in resources:
                            resources[used] = None
                            queue.append(used)
        return list(resources), list(activities)

    def _share(self, resources: list[int], activities: list[Activity]) -> None:
        now_s = self._environment.now
        for activity in activities:
            remaining = activity.remaining - activity.rate * (now_s - activity.since_s)
            activity.remaining = remaining if remaining > 0.0 else 0.0
            activity.since_s = now_s
        if len(resources) == 1 and len({activity.limit for activity in activities}) == 1:
            self._return_to_queue(resources[0])
            return
        for activity, rate in self._fill(resources, activities).items():
            activity.rate = rate
        self._wake(activities)

    def _wake(self, activities: list[Activity]) -> None:
        """Sets a timer for the end of the first activity of a component."""
        next_s = min([activity.ends_s() for activity in activities])
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
        left = {r: self._queues[r].capacity(self._users[r].values()) for r in resources}
        rates: dict[Activity, float] = {}
        # resources before activities at the same level; numbers, so that activities are never compared
        levels = [(left[r] / self._slope(r, rates), 0, r) for r in resources if self._users[r]]
        levels += [(a.limit, 1, i) for i, a in enumerate(activities) if a.limit < math.inf]
        heapq.heapify(levels)

        def stop(activity: Activity, rate: float) -> None:
            rates[activity] = rate
            for resource, per_unit in activity.uses:
                rest = left[resource] - rate * per_unit
                left[resource] = rest if rest > 0.0 else 0.0

        while len(rates) < len(activities):
            level, is_cap, number = heapq.heappop(levels)
            if is_cap:
                if (activity := activities[number]) not in rates:
                    stop(activity, activity.limit * activity.weight)
            elif slope := self._slope(number, rates):
                now = left[number] / slope
                if now > level * (1 + TOGETHER):
                    heapq.heappush(levels, (now, 0, number))
                else:
                    for activity in [a for a in self._users[number] if a not in rates]:
                        stop(activity, level * activity.weight)
        return rates

    def _slope(self, resource: int, stopped: Collection[Activity]) -> float:
        """Use of a resource per unit of the level, by activities that are not stopped."""
        slope = sum([a.weight * per_unit for a, per_unit in self._users[resource].items() if a not in stopped])
        # background traffic rises as long as any activity does
        return slope + self._queues[resource].others if slope else slope

    def _finish(self, activities: list[Activity], timer: object) -> None:
        """Ends the activities of a component that are due, unless their rates have changed since the timer was set."""
        now_s = self._environment.now
        ended = [a for a in activities if a.timer is timer and a.ends_s() <= now_s * (1 + TOGETHER)]
        for activity in ended:
            for use in activity.uses:
                self._users[use.resource].pop(activity, None)
        for activity in ended:
            self._touch([use for use in activity.uses if self._users[use.resource]])
            activity.finished()


def finish_times(
    bandwidth_Bps: Sequence[float] | NDArray[np.float64],
    routes: Sequence[Sequence[int]],
    sizes_bytes: Sequence[float] | NDArray[np.float64],
    start_s: Sequence[float] | NDArray[np.float64],
) -> NDArray[np.float64]:
    """End of each flow in seconds, shape (flows,), with max–min fair sharing of links.

    bandwidth_Bps: of each link. routes: links of each flow, of which repeated ones count once; a flow without links ends when
    it starts. sizes_bytes, start_s: of each flow. Raises ValueError for lengths that differ, links that do not exist,
    bandwidths that are not positive, and sizes or starts that are negative or not finite.
    """
    capacity, sizes, starts = (np.asarray(values, dtype=np.float64) for values in (bandwidth_Bps, sizes_bytes, start_s))
    flow, link = _check_flows(capacity, routes, sizes, starts)
    uses = UsedLinks(flow, link, np.zeros(1, dtype=np.uint64))
    flow_class, link_class = classes(uses, hashes(sizes, starts), hashes(capacity))
    return _class_ends_s(uses, flow_class, link_class, capacity, sizes, starts)[flow_class]


def _class_ends_s(
    uses: UsedLinks, flow_class: Rows, link_class: Rows, capacity: Amounts, sizes: Amounts, starts: Amounts
) -> Amounts:
    """End of the flows of each class in seconds, shape (classes,). One link of each link class carries its flows."""
    first_flow, first_link = map(_first, (flow_class, link_class))
    links = max(1, len(first_link))
    used_pairs = np.sort(flow_class[uses.transfer] * links + link_class[uses.link])
    bounds = np.flatnonzero(np.diff(used_pairs, prepend=-1, append=-1))
    owner, used = np.divmod(used_pairs[bounds[:-1]], links)
    counts = np.diff(bounds)
    own_uses: list[list[Use]] = [[] for _ in first_flow]
    for number, resource, per_link in zip(
        owner.tolist(), used.tolist(), (counts / np.bincount(link_class)[used]).tolist(), strict=True
    ):
        own_uses[number].append(Use(resource, per_link))
    environment = simpy.Environment()
    allocator = Allocator(environment, capacity[first_link])
    ends_s = starts[first_flow]

    def launch(number: int, size_bytes: float) -> Callable[[simpy.Event], None]:
        def finished() -> None:
            ends_s[number] = environment.now

        return lambda _: allocator.start(size_bytes, math.inf, 1.0, own_uses[number], finished)

    # plain numbers: single numpy numbers are slow, and would become the environment's time
    for number, (begin_s, size_bytes) in enumerate(zip(starts[first_flow].tolist(), sizes[first_flow].tolist(), strict=True)):
        if own_uses[number] and size_bytes > 0:
            environment.timeout(begin_s).callbacks.append(launch(number, size_bytes))
    environment.run()
    return ends_s


def _first(numbers: Rows) -> Rows:
    """Index of a member of each class."""
    first = np.zeros(numbers.max(initial=-1) + 1, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return first


def _check_flows(capacity: Amounts, routes: Sequence[Sequence[int]], sizes: Amounts, starts: Amounts) -> tuple[Rows, Rows]:
    """Pairs of a flow and a link of its route, each once."""
    if not len(routes) == len(sizes) == len(starts):
        raise ValueError(f"{len(routes)} routes, {len(sizes)} sizes and {len(starts)} starts; give one of each per flow")
    if not (np.isfinite(capacity).all() and (capacity > 0).all()):
        raise ValueError("a link's bandwidth is zero, negative or not finite; give bytes per second above zero")
    for name, values in (("size", sizes), ("start", starts)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"a flow's {name} is negative or not finite; give a finite number of at least zero")
    lists = CsrLists.from_lists(routes)
    flow, link = lists.keys(), lists.values
    for wrong in np.flatnonzero((link < 0) | (link >= len(capacity)))[:1].tolist():
        raise ValueError(f"flow {flow[wrong]} uses link {link[wrong]}, but links are numbered 0 to {len(capacity) - 1}")
    pairs = np.sort(flow * len(capacity) + link)
    is_repeated = pairs[1:] == pairs[:-1]
    return np.divmod(pairs[np.append(True, ~is_repeated)], len(capacity)) if is_repeated.any() else (flow, link)
