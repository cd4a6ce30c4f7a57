"""The events engine, on SimPy: the reference. Each task of each step starts when all that it waits for has ended."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import simpy

from scaleproof.simulator.common.parameter_server import DROPPED
from scaleproof.simulator.common.speed_profile import Cycle
from scaleproof.simulator.engine.durations import Times, rates, speed_profile_of, variable_speed_rows
from scaleproof.simulator.engine.max_min import TOGETHER, Allocator
from scaleproof.simulator.engine.servers import Applied, Request, Server, ServerHost
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.engine.variation import NONE, Variation
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program, Resources, Use, followers
from scaleproof.simulator.program.table import distinct

# Maximum number of steps of an asynchronous rank, as a multiple of the requested steps.
_MOST_AHEAD: Final = 10
_NEVER: Final = float("nan")


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0, continues: bool = False) -> Timeline:
    """Times `steps` steps of a program, which overlap as its streams allow; deterministic.

    In a program that is not static, ranks begin steps until its units are used up, or else `steps` steps each on average; tasks
    that never begin have no times (NaN). sample: index of the variation's sample. continues: whether a static program continues
    afterwards, so that its last step shares with the next one.
    """
    simulation = _EventSimulation(program, steps + continues, _amounts(program, variation, sample), variation.start_s)
    return simulation.run(steps * len(program)).first(steps) if continues else simulation.run()


def _amounts(program: Program, variation: Variation, sample: int) -> Callable[[int], list[float]]:
    """The amount of each task, as a function of the step."""
    if not variation.is_random:
        amounts = program.amount.tolist()
        return lambda step: amounts
    return lambda step: (program.amount * variation.factors(program, step)[:, sample]).tolist()


class _EventSimulation(ServerHost):
    """State of one simulation. A task instance is numbered step · tasks + row."""

    def __init__(
        self,
        program: Program,
        steps: int,
        amounts: Callable[[int], list[float]],
        rank_starts_s: Times | None,
    ) -> None:
        self.program = program
        self.environment = simpy.Environment()
        self.allocator = Allocator(self.environment, program.resources.capacity, program.resources.incast)
        self.tenants = Tenants(self.environment, self.allocator, program.resources)
        self.tasks = len(program)
        self.ready: deque[int] = deque()
        self.draining = False
        self.quota = None if program.is_static else _StepQuota(self, steps)
        starts_s = np.zeros(len(program.ranks.names)) if rank_starts_s is None else rank_starts_s
        self.rank_starts_s = starts_s.tolist()
        self._link()
        # plain lists: reading single numbers from numpy arrays takes ten times as long
        self.amounts = amounts
        self.latency_s = program.latency_s.tolist()
        self.weight = program.weight.tolist()
        self.uses, self.max_rate = _sharing(program)
        self.serves = (program.kind == Kind.SERVE).tolist()
        self.speed_profiles = {
            row: speed_profile_of(program, int(program.rank[row])) for row in variable_speed_rows(program).tolist()
        }
        self.servers = self._servers()
        self.partner = program.partner.tolist()
        self.before_on_sender = self._before_on_sender()
        self.waiting_for_partner: set[int] = set()
        self.ready_after, self.queued_behind = program.ready_after.tolist(), program.behind.tolist()
        self.ready_s: dict[int, float] = {}
        # waiting transfers by the instance that their ready messages are queued behind
        self.queued: defaultdict[int, list[int]] = defaultdict(list)
        # amounts by step and task; all others by instance
        self.to_do: list[list[float]] = []
        self.pending: list[int] = []
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self.applied_s: list[float] = []
        self.behind: list[int] = []
        # the simulation stops once this number of the first instances have ended
        self.needed = self.left = 0
        self.stopped = self.environment.event()
        for _ in range(steps if program.is_static else 1):
            self._add_step()

    def _link(self) -> None:
        """Sets the successors of each task, within a step and in the next one, and the number of tasks that it waits for, in
        the first step and in later ones."""
        follows, carried = self.program.follows(), self.program.carried_lists()
        self.after, self.after_in_next_step = followers(follows), followers(carried)
        self.waits = [len(before) for before in follows]
        self.later_waits = [wait + len(before) for wait, before in zip(self.waits, carried, strict=True)]
        for task in self.quota.first.values() if self.quota else ():
            self.waits[task] += 1
            self.later_waits[task] += 1
        for rank, start_s in enumerate(self.rank_starts_s):
            if start_s > 0:
                self._delay_start(rank, start_s)

    def _delay_start(self, rank: int, start_s: float) -> None:
        """Delays the tasks of a rank's first step until the rank starts."""
        tasks = np.flatnonzero(self.program.rank == rank).tolist()
        for task in tasks:
            self.waits[task] += 1
        self.environment.timeout(start_s).callbacks.append(partial(self._begin, rank, tasks))

    def _begin(self, rank: int, tasks: Sequence[int], _: simpy.Event) -> None:
        if self.quota and rank in self.quota.first:
            self.quota.request(rank, 0)
        for task in tasks:
            self.arrived(task)
        self._drain()

    def _servers(self) -> dict[int, Server]:
        """The server of each rank class that is one."""
        requests: dict[int, dict[int, dict[int, int]]] = {}
        program = self.program
        for row in np.flatnonzero(program.kind == Kind.SERVE):
            by_worker = requests.setdefault(int(program.rank[row]), {}).setdefault(int(program.bucket[row]), {})
            worker = int(program.peer[row])
            by_worker[worker] = by_worker.get(worker, 0) + int(program.requests[row])
        return {
            rank: Server(self.environment, self, program.consistency, by_bucket, speed_profile_of(program, rank))
            for rank, by_bucket in requests.items()
        }

    def _add_step(self) -> None:
        """Adds the task instances of one more step."""
        first = len(self.pending)
        waits = self.later_waits if first else self.waits
        self.pending += waits
        self.to_do.append(self.amounts(first // self.tasks))
        for times in (self.start_s, self.end_s, self.applied_s):
            times += [_NEVER] * self.tasks
        self.behind += [DROPPED] * self.tasks
        self.ready.extend(first + task for task, pending in enumerate(waits) if pending == 0)

    def run(self, needed: int = 0) -> Timeline:
        """Runs the simulation to its end, or until this number of the first task instances have ended."""
        self.needed = self.left = needed
        if self.quota:
            for rank in (rank for rank in self.quota.first if self.rank_starts_s[rank] == 0):
                self.quota.request(rank, 0)
        self._drain()
        self.tenants.schedule()
        self.environment.run(until=self.stopped if needed else None)
        shape = (-1, self.tasks)
        start_s, end_s, applied_s = (np.array(times).reshape(shape) for times in (self.start_s, self.end_s, self.applied_s))
        busy = {rank: server.busy for rank, server in self.servers.items()}
        applied = Applied(applied_s, np.array(self.behind).reshape(shape)) if self.quota else None
        return Timeline(self.program, start_s, end_s, busy, applied)

    def _drain(self) -> None:
        """Starts all instances that are ready; a loop, not recursion, since chains of zero-time tasks can be long."""
        if self.draining:
            return
        self.draining = True
        while self.ready:
            self._start(self.ready.popleft())
        self.draining = False

    def _before_on_sender(self) -> dict[int, int]:
        """For each transfer with a partner the task before it on its sender."""
        first, second, before_first, before_second = (rows.tolist() for rows in self.program.partners())
        return dict(zip(first + second, before_first + before_second, strict=True))

    def _comes_second(self, instance: int, task: int) -> bool:
        """Whether a transfer waits for its partner: if the partner's sender was ready later, or at the same time and the
        partner is first."""
        partner, step = self.partner[task], instance - task
        own_s, other_s = (self.end_s[step + self.before_on_sender[transfer]] for transfer in (task, partner))
        if task < partner:
            return other_s > own_s * (1 + TOGETHER)
        return other_s * (1 + TOGETHER) >= own_s

    def _ready_s(self, instance: int) -> float:
        """Time at which the sender of a transfer has received the ready message of its receiver; infinite until then."""
        if instance not in self.ready_s:
            task = instance % self.tasks
            ready_s, other = self.end_s[instance - task + self.ready_after[task]], instance - task + self.queued_behind[task]
            if math.isnan(ready_s):
                return math.inf
            if self.queued_behind[task] >= 0 and self._ready_s(other) < ready_s * (1 - TOGETHER):
                ready_s = self.end_s[other]
            if math.isnan(ready_s):
                return math.inf
            self.ready_s[instance] = ready_s
        return self.ready_s[instance]

    def _start(self, instance: int) -> None:
        task = instance % self.tasks
        if self.ready_after[task] >= 0 and math.isinf(self._ready_s(instance)):
            self.queued[instance - task + self.queued_behind[task]].append(instance)
            return
        if self.partner[task] >= 0 and instance not in self.waiting_for_partner and self._comes_second(instance, task):
            self.waiting_for_partner.add(instance)
            return
        self.start_s[instance] = self.environment.now
        if self.serves[task]:
            self._serve(instance, task)
        elif self.uses[task] or task in self.speed_profiles:
            self._after(self.latency_s[task], lambda: self._move(instance, task))
        else:
            seconds = self.latency_s[task] + self.to_do[instance // self.tasks][task] / self.max_rate[task]
            self._after(seconds, lambda: self._complete(instance))

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        """Calls `then` after some seconds."""
        if seconds > 0:
            self.environment.timeout(seconds).callbacks.append(lambda _: then())
        else:
            then()

    def _move(self, instance: int, task: int) -> None:
        """Begins the work or transfer of an instance that shares resources or whose speed varies, after its latency."""
        amount = self.to_do[instance // self.tasks][task]
        if amount == 0:
            self._complete(instance)
            return
        if profile := self.speed_profiles.get(task):
            amount = profile.lasts_s(self.environment.now, amount)
        if self.uses[task]:
            self.allocator.start(
                amount, self.max_rate[task], self.weight[task], self.uses[task], lambda: self._complete(instance)
            )
        else:
            self._after(amount / self.max_rate[task], lambda: self._complete(instance))

    def _serve(self, instance: int, task: int) -> None:
        step, program = instance // self.tasks, self.program
        request = Request(
            instance, step, int(program.peer[task]), int(program.bucket[task]), int(program.requests[task]),
            self.to_do[step][task], float(program.update_s[task]), self.uses[task],
        )  # fmt: skip
        self.servers[int(program.rank[task])].request(request)

    def work(self, seconds: float, uses: Sequence[Use], then: Callable[[], None]) -> None:
        if uses:
            self.allocator.start(seconds, 1.0, 1.0, uses, then)
        else:
            self._after(seconds, then)

    def began(self, instance: int) -> None:
        self.start_s[instance] = self.environment.now

    def applied(self, instance: int, behind: int) -> None:
        self.applied_s[instance] = self.environment.now
        self.behind[instance] = behind

    def replied(self, instance: int) -> None:
        self._complete(instance)

    def _complete(self, instance: int) -> None:
        self.end_s[instance] = self.environment.now
        if instance < self.needed:
            self.left -= 1
            if self.left == 0:
                self.stopped.succeed()
        step, task = divmod(instance, self.tasks)
        if instance - task + self.partner[task] in self.waiting_for_partner and self.partner[task] >= 0:
            self.ready.append(instance - task + self.partner[task])
        self.ready.extend(self.queued.pop(instance, ()))
        for successor in self.after[task]:
            self.arrived(step * self.tasks + successor)
        following = self.after_in_next_step[task]
        if following and (self.quota or step + 1 < len(self.to_do)):
            if step + 1 == len(self.to_do):
                self._add_step()
            for successor in following:
                self.arrived((step + 1) * self.tasks + successor)
        if self.quota and task in self.quota.last:
            self.quota.request(self.quota.last[task], step + 1)
        self._drain()

    def arrived(self, instance: int) -> None:
        """Counts one task less that an instance waits for."""
        self.pending[instance] -= 1
        if self.pending[instance] == 0:
            self.ready.append(instance)


class _StepQuota:
    """The steps left for asynchronous ranks, which request each step before they begin it.

    first: first task of each training rank's main stream, by rank. last: rank by the last task of its main stream.
    """

    def __init__(self, execution: _EventSimulation, steps: int) -> None:
        program = execution.program
        training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
        streams = [tasks for tasks in program.streams().lists() if training[tasks[0]]]
        self.first = {int(program.rank[tasks[0]]): tasks[0] for tasks in streams}
        self.last = {tasks[-1]: int(program.rank[tasks[0]]) for tasks in streams}
        self._execution = execution
        self._left = program.units.count if program.units else steps * len(streams)
        self._most = dict.fromkeys(self.first, _MOST_AHEAD * steps)
        if program.units:
            for number, rank in enumerate(self.first):
                self._most[rank] = program.units.most_steps(number, len(streams))

    def request(self, rank: int, step: int) -> None:
        """Lets the rank begin a step, if one is left for it; else removes the rank from all servers."""
        if step < self._most[rank] and self._left > 0:
            self._left -= 1
            self._execution.arrived(step * self._execution.tasks + self.first[rank])
        else:
            for server in self._execution.servers.values():
                server.leave(rank)


def _sharing(program: Program) -> tuple[list[list[Use]], list[float]]:
    """The shared resources that each task uses, and its maximum rate.

    In a program that is not static, a resource that carries all its tasks at once, each at the rate that it has alone, is never
    overloaded, and is left out.
    """
    routes = distinct(program).lists()
    if program.is_static:
        return [routes[route] for route in program.route.tolist()], program.max_rate.tolist()
    alone, resources = rates(program), program.resources
    task, resource, per_unit = program.routes.used(program.route)
    wanted = np.bincount(resource, alone[task] * per_unit, len(resources.names))
    # the incast loss of a task with several messages is included in the rate that it has alone
    ample = (wanted <= resources.capacity * (1 + TOGETHER)) & (resources.incast == 0)
    ample |= np.bincount(resource, minlength=len(resources.names)) == 1
    # the work of a server is given in seconds, independently of its rate
    ample[resource[program.kind[task] == Kind.SERVE]] = False
    ample[[tenancy.resource for tenancy in resources.tenancies]] = False
    shared = [[use for use in route if not ample[use.resource]] for route in routes]
    return [shared[route] for route in program.route.tolist()], alone.tolist()


# Background traffic: tenants that use a part of shared resources, all the time or in cycles.

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
