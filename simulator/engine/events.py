"""The events engine, on SimPy: the reference. Every task of every step is started when what it waits for has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.engine.flows import Allocator
from simulator.engine.servers import Request, Server
from simulator.engine.timeline import Timeline
from simulator.engine.variation import NONE, Variation
from simulator.program import Kind, Program, Use, followers


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Runs `steps` steps of a program, one after another as its lanes allow; deterministic.

    sample: which of the variation's samples to run, counted from zero.
    """
    return _Execution(program, steps, _amounts(program, steps, variation, sample), variation.start_s).run()


def _amounts(program: Program, steps: int, variation: Variation, sample: int) -> list[list[float]]:
    """What each task has to do in each step."""
    if not (variation.compute_jitter or variation.message_jitter):
        return [program.amount.tolist()] * steps
    return [(program.amount * variation.factors(program, step)[:, sample]).tolist() for step in range(steps)]


class _Execution:
    """State of one simulation. A task instance is numbered step · tasks + row."""

    def __init__(
        self, program: Program, steps: int, amounts: list[list[float]], rank_starts_s: NDArray[np.float64] | None
    ) -> None:
        self.program = program
        self.steps = steps
        self.environment = simpy.Environment()
        self.allocator = Allocator(self.environment, program.resources.capacity, program.resources.incast)
        self.tasks = len(program)
        self.start_s = np.zeros(steps * self.tasks)
        self.end_s = np.zeros(steps * self.tasks)
        self.ready: deque[int] = deque()
        self.draining = False
        self._link()
        if rank_starts_s is not None:
            self._hold_back(rank_starts_s)
        # plain lists: reading single numbers out of numpy arrays costs ten times as much
        self.amounts = amounts
        self.latency_s = program.latency_s.tolist()
        self.max_rate = program.max_rate.tolist()
        self.weight = program.weight.tolist()
        self.uses = program.uses()
        serves = program.kind == Kind.SERVE
        self.serves = serves.tolist()
        self.servers = {
            rank: Server(self.environment, self._work, int((serves & (program.rank == rank)).sum()))
            for rank in np.unique(program.rank[serves]).tolist()
        }

    def _link(self) -> None:
        """Who waits for whom: successors within a step, and from one step to the next."""
        follows, carried = self.program.follows(), self.program.carried_with_lanes()
        self.after, self.after_in_next_step = followers(follows), followers(carried)
        waits = [len(before) for before in follows]
        later = [wait + len(before) for wait, before in zip(waits, carried, strict=True)]
        self.pending = waits + later * (self.steps - 1)

    def _hold_back(self, rank_starts_s: NDArray[np.float64]) -> None:
        """No task of the first step starts before its rank does."""
        for rank, start_s in enumerate(rank_starts_s.tolist()):
            if start_s > 0:
                tasks = np.flatnonzero(self.program.rank == rank).tolist()
                for task in tasks:
                    self.pending[task] += 1
                self.environment.timeout(start_s).callbacks.append(partial(self._begin, tasks))

    def _begin(self, tasks: Sequence[int], _: simpy.Event) -> None:
        for task in tasks:
            self._arrived(task)
        self._drain()

    def run(self) -> Timeline:
        """Runs all steps to their end."""
        for instance, pending in enumerate(self.pending):
            if pending == 0:
                self.ready.append(instance)
        self._drain()
        self.environment.run()
        shape = (self.steps, self.tasks)
        busy = {rank: server.busy for rank, server in self.servers.items()}
        return Timeline(self.program, self.start_s.reshape(shape), self.end_s.reshape(shape), busy)

    def _drain(self) -> None:
        """Starts all that is ready; a loop, not recursion, since chains of zero-time tasks can be long."""
        if self.draining:
            return
        self.draining = True
        while self.ready:
            self._start(self.ready.popleft())
        self.draining = False

    def _start(self, instance: int) -> None:
        task = instance % self.tasks
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
        amount = self.amounts[instance // self.tasks][task]
        if amount == 0:
            self._complete(instance)
            return
        if self.uses[task]:
            self.allocator.start(
                amount, self.max_rate[task], self.weight[task], self.uses[task], lambda: self._complete(instance)
            )
        else:
            timer = self.environment.timeout(amount / self.max_rate[task])
            timer.callbacks.append(lambda _: self._complete(instance))

    def _work(self, seconds: float, uses: Sequence[Use]) -> simpy.Event:
        """A server's work: `seconds` on what it uses."""
        if not uses:
            return self.environment.timeout(seconds)
        done = self.environment.event()

        def finished() -> None:
            done.succeed()

        self.allocator.start(seconds, 1.0, 1.0, uses, finished)
        return done

    def _serve(self, instance: int, task: int) -> None:
        step = instance // self.tasks

        def began() -> None:
            self.start_s[instance] = self.environment.now

        self.servers[int(self.program.rank[task])].request(
            Request(
                step=step,
                count=int(self.program.requests[task]),
                service_s=self.amounts[step][task],
                update_s=float(self.program.update_s[task]),
                uses=self.uses[task],
                began=began,
                released=lambda: self._complete(instance),
            )
        )

    def _complete(self, instance: int) -> None:
        self.end_s[instance] = self.environment.now
        step, task = divmod(instance, self.tasks)
        for successor in self.after[task]:
            self._arrived(step * self.tasks + successor)
        if step + 1 < self.steps:
            for successor in self.after_in_next_step[task]:
                self._arrived((step + 1) * self.tasks + successor)
        self._drain()

    def _arrived(self, instance: int) -> None:
        self.pending[instance] -= 1
        if self.pending[instance] == 0:
            self.ready.append(instance)
