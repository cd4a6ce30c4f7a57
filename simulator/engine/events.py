"""The events engine, on SimPy: the reference. Every task of every step is started when what it waits for has ended."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import simpy

from scaleproof.simulator.engine.background_traffic import Tenants
from scaleproof.simulator.engine.durations import Times, durations_s, paced_rows, pacing_of, rates
from scaleproof.simulator.engine.equivalent_resources import distinct
from scaleproof.simulator.engine.fair_queue import TOGETHER
from scaleproof.simulator.engine.jitter import NONE, Variation
from scaleproof.simulator.engine.max_min import Allocator
from scaleproof.simulator.engine.servers import Applied, Request, Server, ServerHost
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import MAIN_LANE, Kind, Program, Use, followers
from scaleproof.simulator.program.consistency import DROPPED, Bsp

# Where ranks take steps each on its own, none takes more than so many times those asked for.
_MOST_AHEAD: Final = 10
_NEVER: Final = float("nan")


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Runs `steps` steps of a program, one after another as its lanes allow; deterministic.

    In a program that is not static ranks begin steps until its units are taken, or else `steps` steps of each on average; what
    is never begun has no time. Without units there is no beginning that all share: ranks that no barrier keeps in step begin
    spread evenly over a step, since those that begin as one take hundreds of steps to part. sample: which of the variation's
    samples to run, counted from zero.
    """
    return _EventSimulation(program, steps, _amounts(program, variation, sample), variation.start_s).run()


def _amounts(program: Program, variation: Variation, sample: int) -> Callable[[int], list[float]]:
    """What each task has to do in each step."""
    if not variation.is_random:
        alike = program.amount.tolist()
        return lambda step: alike
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
        self.takers = None if program.is_static else _Takers(self, steps)
        starts_s = np.zeros(len(program.ranks.names)) if rank_starts_s is None else rank_starts_s
        self.rank_starts_s = (starts_s + _apart_s(program)).tolist()
        self._link()
        # plain lists: reading single numbers out of numpy arrays costs ten times as much
        self.amounts = amounts
        self.latency_s = program.latency_s.tolist()
        self.weight = program.weight.tolist()
        self.uses, self.max_rate = _sharing(program)
        self.serves = (program.kind == Kind.SERVE).tolist()
        self.pacing = {row: pacing_of(program, int(program.rank[row])) for row in paced_rows(program).tolist()}
        self.servers = self._servers()
        self.partner = program.partner.tolist()
        self.made = self._made()
        self.held: set[int] = set()
        self.told_after, self.behind_of = program.told_after.tolist(), program.behind.tolist()
        self.heard_s: dict[int, float] = {}
        # by the instance that the word which they wait for is behind
        self.queued: defaultdict[int, list[int]] = defaultdict(list)
        # of each step what its tasks have to do and wait for; of each instance its times
        self.to_do: list[list[float]] = []
        self.pending: list[int] = []
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self.applied_s: list[float] = []
        self.behind: list[int] = []
        for _ in range(steps if program.is_static else 1):
            self._open()

    def _link(self) -> None:
        """Who waits for whom: successors within a step, and from one step to the next; how much a task waits for in the first
        step and in later ones."""
        follows, carried = self.program.follows(), self.program.carried_with_lanes()
        self.after, self.after_in_next_step = followers(follows), followers(carried)
        self.waits = [len(before) for before in follows]
        self.later_waits = [wait + len(before) for wait, before in zip(self.waits, carried, strict=True)]
        for task in self.takers.first.values() if self.takers else ():
            self.waits[task] += 1
            self.later_waits[task] += 1
        for rank, start_s in enumerate(self.rank_starts_s):
            if start_s > 0:
                self._hold_back(rank, start_s)

    def _hold_back(self, rank: int, start_s: float) -> None:
        """No task of the first step starts before its rank does."""
        tasks = np.flatnonzero(self.program.rank == rank).tolist()
        for task in tasks:
            self.waits[task] += 1
        self.environment.timeout(start_s).callbacks.append(partial(self._begin, rank, tasks))

    def _begin(self, rank: int, tasks: Sequence[int], _: simpy.Event) -> None:
        if self.takers and rank in self.takers.first:
            self.takers.ask(rank, 0)
        for task in tasks:
            self.arrived(task)
        self._drain()

    def _servers(self) -> dict[int, Server]:
        """The server of each rank class that is one."""
        requests: dict[int, dict[int, dict[int, int]]] = {}
        program = self.program
        for row in np.flatnonzero(program.kind == Kind.SERVE):
            of_bucket = requests.setdefault(int(program.rank[row]), {}).setdefault(int(program.bucket[row]), {})
            worker = int(program.peer[row])
            of_bucket[worker] = of_bucket.get(worker, 0) + int(program.requests[row])
        return {
            rank: Server(self.environment, self, program.gate, of_rank, pacing_of(program, rank))
            for rank, of_rank in requests.items()
        }

    def _open(self) -> None:
        """Makes room for one step more."""
        first = len(self.pending)
        waits = self.later_waits if first else self.waits
        self.pending += waits
        self.to_do.append(self.amounts(first // self.tasks))
        for times in (self.start_s, self.end_s, self.applied_s):
            times += [_NEVER] * self.tasks
        self.behind += [DROPPED] * self.tasks
        self.ready.extend(first + task for task, pending in enumerate(waits) if pending == 0)

    def run(self) -> Timeline:
        """Runs to the end."""
        if self.takers:
            for rank in (rank for rank in self.takers.first if self.rank_starts_s[rank] == 0):
                self.takers.ask(rank, 0)
        self._drain()
        self.tenants.go_on()
        self.environment.run()
        shape = (-1, self.tasks)
        start_s, end_s, applied_s = (np.array(times).reshape(shape) for times in (self.start_s, self.end_s, self.applied_s))
        busy = {rank: server.busy for rank, server in self.servers.items()}
        applied = Applied(applied_s, np.array(self.behind).reshape(shape)) if self.takers else None
        return Timeline(self.program, start_s, end_s, busy, applied)

    def _drain(self) -> None:
        """Starts all that is ready; a loop, not recursion, since chains of zero-time tasks can be long."""
        if self.draining:
            return
        self.draining = True
        while self.ready:
            self._start(self.ready.popleft())
        self.draining = False

    def _made(self) -> dict[int, int]:
        """For each transfer that has a partner the task before it on its sender's side."""
        first, second, before_first, before_second = (rows.tolist() for rows in self.program.partners())
        return dict(zip(first + second, before_first + before_second, strict=True))

    def _comes_second(self, instance: int, task: int) -> bool:
        """Whether a transfer waits for its partner: the rank that sends that came later, or as late and is named first."""
        partner, step = self.partner[task], instance - task
        own_s, other_s = (self.end_s[step + self.made[one]] for one in (task, partner))
        if task < partner:
            return other_s > own_s * (1 + TOGETHER)
        return other_s * (1 + TOGETHER) >= own_s

    def _heard_s(self, instance: int) -> float:
        """When the sender of a transfer has heard that its receiver is ready; infinite as long as it has not."""
        if instance not in self.heard_s:
            task = instance % self.tasks
            told_s, other = self.end_s[instance - task + self.told_after[task]], instance - task + self.behind_of[task]
            if math.isnan(told_s):
                return math.inf
            if self.behind_of[task] >= 0 and self._heard_s(other) < told_s * (1 - TOGETHER):
                told_s = self.end_s[other]
            if math.isnan(told_s):
                return math.inf
            self.heard_s[instance] = told_s
        return self.heard_s[instance]

    def _start(self, instance: int) -> None:
        task = instance % self.tasks
        if self.told_after[task] >= 0 and math.isinf(self._heard_s(instance)):
            self.queued[instance - task + self.behind_of[task]].append(instance)
            return
        if self.partner[task] >= 0 and instance not in self.held and self._comes_second(instance, task):
            self.held.add(instance)
            return
        self.start_s[instance] = self.environment.now
        if self.serves[task]:
            self._serve(instance, task)
        elif self.latency_s[task] > 0:
            timer = self.environment.timeout(self.latency_s[task])
            timer.callbacks.append(lambda _: self._move(instance, task))
        else:
            self._move(instance, task)

    def _move(self, instance: int, task: int) -> None:
        """Work or bytes proper, after the latency."""
        amount = self.to_do[instance // self.tasks][task]
        if amount == 0:
            self._complete(instance)
            return
        if pacing := self.pacing.get(task):
            amount = pacing.lasts_s(self.environment.now, amount)
        if self.uses[task]:
            self.allocator.start(
                amount, self.max_rate[task], self.weight[task], self.uses[task], lambda: self._complete(instance)
            )
        else:
            timer = self.environment.timeout(amount / self.max_rate[task])
            timer.callbacks.append(lambda _: self._complete(instance))

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
            self.environment.timeout(seconds).callbacks.append(lambda _: then())

    def began(self, instance: int) -> None:
        self.start_s[instance] = self.environment.now

    def applied(self, instance: int, behind: int) -> None:
        self.applied_s[instance] = self.environment.now
        self.behind[instance] = behind

    def answered(self, instance: int) -> None:
        self._complete(instance)

    def _complete(self, instance: int) -> None:
        self.end_s[instance] = self.environment.now
        step, task = divmod(instance, self.tasks)
        if instance - task + self.partner[task] in self.held and self.partner[task] >= 0:
            self.ready.append(instance - task + self.partner[task])
        self.ready.extend(self.queued.pop(instance, ()))
        for successor in self.after[task]:
            self.arrived(step * self.tasks + successor)
        following = self.after_in_next_step[task]
        if following and (self.takers or step + 1 < len(self.to_do)):
            if step + 1 == len(self.to_do):
                self._open()
            for successor in following:
                self.arrived((step + 1) * self.tasks + successor)
        if self.takers and task in self.takers.last:
            self.takers.ask(self.takers.last[task], step + 1)
        self._drain()

    def arrived(self, instance: int) -> None:
        """One less of what an instance waits for."""
        self.pending[instance] -= 1
        if self.pending[instance] == 0:
            self.ready.append(instance)


class _Takers:
    """Ranks that take steps each on its own: the main lane of a rank needs leave to begin another.

    first: the first task of each training rank's main lane. last: the ranks by their last.
    """

    def __init__(self, execution: _EventSimulation, steps: int) -> None:
        program = execution.program
        training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
        lanes = [lane for lane in program.lanes().lists() if training[lane[0]]]
        self.first = {int(program.rank[lane[0]]): lane[0] for lane in lanes}
        self.last = {lane[-1]: int(program.rank[lane[0]]) for lane in lanes}
        self._execution = execution
        self._left = program.units.count if program.units else steps * len(lanes)
        self._most = dict.fromkeys(self.first, _MOST_AHEAD * steps)
        if program.units:
            each, more = divmod(self._left, len(lanes))
            for number, rank in enumerate(self.first):
                self._most[rank] = self._left if program.units.shared else each + (number < more)

    def ask(self, rank: int, step: int) -> None:
        """Gives the rank leave to begin a step, if there is one left for it; else nobody waits for it any longer."""
        if step < self._most[rank] and self._left > 0:
            self._left -= 1
            self._execution.arrived(step * self._execution.tasks + self.first[rank])
        else:
            for server in self._execution.servers.values():
                server.leave(rank)


def _apart_s(program: Program) -> Times:
    """When ranks begin that have no beginning in common, shape (ranks,)."""
    ranks = program.ranks
    training = np.flatnonzero(~ranks.is_server)
    begin_s = np.zeros(len(ranks.names))
    if not (program.units or isinstance(program.gate, Bsp)):
        begin_s[training] = _round_s(program) * np.arange(len(training)) / len(training)
    return begin_s


def _round_s(program: Program) -> float:
    """About how long a step of all ranks takes: as long as the busiest resource or server is busy, or a rank alone takes."""
    seconds, count = durations_s(program), len(program.ranks.names)
    serves = program.kind == Kind.SERVE
    task, resource, per_unit = program.routes.used(program.route)
    moves = np.where(serves, 0.0, program.amount)[task] * per_unit / program.resources.capacity[resource]
    busy_s = np.bincount(resource, moves), np.bincount(program.rank[serves], seconds[serves])
    alone_s = np.zeros(count)
    np.add.at(alone_s, program.rank, np.where(program.lane == MAIN_LANE, seconds, 0.0))
    from_server = program.ranks.is_server[program.rank]
    for pulls in (False, True):
        longest_s = np.zeros(count)
        of_side = (program.kind == Kind.TRANSFER) & (from_server == pulls)
        np.maximum.at(longest_s, (program.peer if pulls else program.rank)[of_side], seconds[of_side])
        alone_s += longest_s
    return max(float(side.max(initial=0.0)) for side in (*busy_s, alone_s))


def _sharing(program: Program) -> tuple[list[list[Use]], list[float]]:
    """What each task has to share with others, and its highest rate.

    Where tasks of one step never meet those of another, a resource is never short that carries all its tasks at once, each at
    the rate that it has alone: nothing of it needs working out.
    """
    routes = distinct(program).lists()
    if program.is_static:
        return [routes[route] for route in program.route.tolist()], program.max_rate.tolist()
    alone, resources = rates(program), program.resources
    task, resource, per_unit = program.routes.used(program.route)
    wanted = np.bincount(resource, alone[task] * per_unit, len(resources.names))
    # what a task that is several messages loses to incast is in the rate that it has alone
    ample = (wanted <= resources.capacity * (1 + TOGETHER)) & (resources.incast == 0)
    ample |= np.bincount(resource, minlength=len(resources.names)) == 1
    # a server's work is told by its seconds, not by its rate
    ample[resource[program.kind[task] == Kind.SERVE]] = False
    ample[[one.resource for one in resources.tenancies]] = False
    shared = [[use for use in route if not ample[use.resource]] for route in routes]
    return [shared[route] for route in program.route.tolist()], alone.tolist()
