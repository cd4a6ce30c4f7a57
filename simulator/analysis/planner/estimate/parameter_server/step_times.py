"""Expected and least step times of many configurations with parameter servers.

A step is simulated for all configurations of one shape at once: passes, pushes bucket by bucket, servers that process one
request after another, pulls. In expected times messages share links with concurrent ones; in lower bounds they do not, but no
link exceeds its capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import distinct
from scaleproof.simulator.analysis.planner.estimate.parameter_server.configurations import ServerConfigurations
from scaleproof.simulator.analysis.planner.estimate.parameter_server.transfers import (
    PushPullTimes,
    ServerTransfers,
    TransferShape,
    server_transfers,
)
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import suffix_sum
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.shards import buckets

Times = NDArray[np.float64]
_Shared = Literal["not at all", "pushes first", "evenly"]

# Simulated steps: the difference of the last two is the step time.
_STEPS: Final = 2
# Predictions neglect sharing that delays a step by less than a thousandth.
_SURE: Final = 0.998


def server_step_times(configurations: ServerConfigurations) -> StepTimes:
    """Expected times of all configurations, and lower bounds of any prediction. Raises FieldError if a configuration turns out
    to be invalid."""
    c = configurations
    expected_s, least_s = np.empty((2, len(c)))
    if not len(c):
        return StepTimes(expected_s, least_s)
    passed = distinct(c.workers, c.recompute)
    jobs = [_job(c, row) for row in passed.first.tolist()]
    links = distinct(c.workers, c.servers, c.placement, c.two_level, c.bucket)
    found = [server_transfers(c.strategy(row).compile(jobs[passed.code[row]])) for row in links.first.tolist()]
    shapes: dict[TransferShape, list[int]] = {}
    for number, one in enumerate(found):
        shapes.setdefault(one.shape, []).append(number)
    pieces_s = {
        (job, bucket): _pieces_s(c, jobs[job], bucket)
        for job, bucket in {*zip(passed.code.tolist(), c.bucket.tolist(), strict=True)}
    }
    for shape, numbers in shapes.items():
        rows = np.flatnonzero(np.isin(links.code, numbers))
        passes_s = np.stack([pieces_s[passed.code[row], c.bucket[row]] for row in rows], axis=-1)
        step = _Step(shape, [found[code] for code in links.code[rows]], passes_s)
        expected_s[rows], least_s[rows] = step.expected_s(), _SURE * step.least_s()
    return StepTimes(np.maximum(expected_s, least_s), least_s)


def _job(c: ServerConfigurations, row: int) -> Job:
    job = c.space.scenario.job(strategy=c.strategy(row))
    samples = c.space.scenario.total_samples // int(c.workers[row])
    return replace(job, samples_per_worker=samples, recompute=c.space.recompute[c.recompute[row]])


def _pieces_s(c: ServerConfigurations, job: Job, bucket: int) -> Times:
    """Seconds of forward and backward pass over the layers with which each bucket begins, shape (2, buckets)."""
    kept = c.space.kept
    limit_bytes = c.space.buckets_bytes[bucket] if kept["overlap"] else np.inf
    parts = buckets(job.layers, 1, "bytes", job.element_bytes, limit_bytes, kept.get("sparse"), 1)
    costs, begins = job.costs(), [part.layer for part in parts]
    running = np.cumsum([[0.0, *costs.forward_s], [0.0, *costs.backward_s]], axis=1)
    pieces: Times = np.diff(running[:, [*begins, len(job.layers)]], axis=1)
    if rollout_s := kept.get("rollout_s"):
        # rollouts need all parameters
        pieces[0] = [*[0.0] * (len(parts) - 1), rollout_s + pieces[0].sum()]
    return pieces


class _Step:
    """Configurations of one shape. Arrays have configurations last."""

    def __init__(self, shape: TransferShape, links: Sequence[ServerTransfers], passes_s: Times) -> None:
        """passes_s: forward and backward pass over each bucket's layers, shape (2, buckets, configurations)."""
        self.shape, self.transfers = shape, links
        self.group_of, self.server_of = np.array(shape.group_of), np.array(shape.server_of)
        self.push_link, self.pull_link = np.array(shape.links)
        self.firsts = np.flatnonzero(np.diff(self.server_of, prepend=-1))
        self.of_group = [np.flatnonzero(self.group_of == group) for group in range(shape.groups)]
        self.forward_s, self.backward_s = passes_s[:, :, None] * self._all("slowdown")
        self.links = self._moves("links")
        self.nothing_s: Times = np.full(self.links.pushes_s.shape, -np.inf)
        names = "services_s", "updates_s", "sums_s", "broadcasts_s", "busy_s"
        self.services_s, self.updates_s, self.sums_s, self.broadcasts_s, self.busy_s = map(self._all, names)

    def _all(self, name: str) -> Times:
        return np.stack([getattr(one, name) for one in self.transfers], axis=-1)

    def _moves(self, name: str) -> PushPullTimes:
        pushes, pulls = zip(*(getattr(one, name) for one in self.transfers), strict=True)
        return PushPullTimes(np.stack(pushes, axis=-1), np.stack(pulls, axis=-1))

    def expected_s(self) -> Times:
        """Expected seconds of a step: the mean of two cases of sharing links. In one, pulls give way to pushes, within what
        links can carry of both in a step; in the other both share links evenly. In either, messages for the same bucket share
        links."""
        moves = self._moves("shared")
        leaving_s = np.maximum(self._followed(moves, "pushes first"), self._both_s())
        expected: Times = (leaving_s + self._followed(moves, "evenly")) / 2
        return expected

    def _both_s(self) -> Times:
        """Seconds until links that carry pushes and pulls have carried all buckets after some bucket is ready."""
        sent_s = [np.cumsum(np.maximum(one, 0.0), axis=1) for one in self.links]
        carries_both = (sent_s[0][:, -1:] > 0) & (sent_s[1][:, -1:] > 0)
        busy_s = np.max(sent_s[0] + sent_s[1], axis=0, where=carries_both, initial=-np.inf)
        both_s: Times = (self._until_ready_s() + busy_s).max(axis=0)
        return both_s

    def least_s(self) -> Times:
        """Least seconds of a step: messages do not share links, but no link exceeds its capacity."""
        busy_s = (self._until_ready_s() + self.busy_s).max(axis=0)
        least: Times = np.maximum(self._followed(self._moves("alone"), "not at all"), busy_s)
        return least

    def _until_ready_s(self) -> Times:
        """Least seconds from the begin of a step until the gradients of each bucket are ready, shape (buckets,
        configurations)."""
        ready: Times = (self.forward_s.sum(axis=0) + suffix_sum(self.backward_s) + self.sums_s.transpose(1, 0, 2)).min(axis=1)
        return ready

    def _followed(self, moves: PushPullTimes, shared: _Shared) -> Times:
        """Seconds of a step after the first. shared: how pushes and pulls share links."""
        state = _State.at_rest(self.shape, len(self.transfers))
        ends_s = []
        for _ in range(_STEPS):
            now_s, ready_s = self._passed(state)
            through = PushPullTimes(self.nothing_s if shared == "not at all" else self._in_turn(ready_s), self.nothing_s)
            pushed_s = self._pushed(moves, ready_s, through.pushes_s)
            released_s, free_s = self._served(state, pushed_s)
            if shared != "not at all":
                through = self._through(ready_s, released_s, through.pushes_s, shared == "evenly")
                pushed_s = self._pushed(moves, ready_s, through.pushes_s)
                released_s, free_s = self._served(state, pushed_s)
            state.free_s = free_s
            self._pulled(state, moves, released_s, through.pulls_s)
            sent_s = np.stack([pushed_s[own].max(axis=(0, 1)) for own in self.of_group])
            state.begin_s = np.maximum(np.maximum(now_s, sent_s), state.arrived_s[:, 0])
            ends_s.append(state.begin_s.max(axis=0))
        step_s: Times = ends_s[-1] - ends_s[-2]
        return step_s

    def _passed(self, state: _State) -> tuple[Times, Times]:
        """Times at which each group ends its passes, and at which gradients of each bucket are ready, shape (groups, buckets,
        configurations)."""
        now_s = state.begin_s
        for bucket, forward_s in enumerate(self.forward_s):
            now_s = (np.maximum(now_s, state.arrived_s[:, bucket]) if bucket else now_s) + forward_s
        ready_s = np.empty_like(state.arrived_s)
        for bucket in reversed(range(self.shape.buckets)):
            now_s = now_s + self.backward_s[bucket]
            if self.shape.broadcasts:
                state.collective_s = np.maximum(state.collective_s, now_s) + self.sums_s[:, bucket]
            ready_s[:, bucket] = state.collective_s if self.shape.broadcasts else now_s
        return now_s, ready_s

    def _pushed(self, moves: PushPullTimes, ready_s: Times, through_s: Times) -> Times:
        """Time at which each push ends; pushes over one connection follow one another. through_s: times at which links have
        carried the pushes."""
        pushed_s, sent_s = np.empty_like(moves.pushes_s), np.full(moves.pushes_s[:, 0].shape, -np.inf)
        for bucket in reversed(range(self.shape.buckets)):
            ends_s = np.maximum(ready_s[self.group_of, bucket], sent_s) + moves.pushes_s[:, bucket]
            # −∞ stands for no message
            ends_s = np.where(ends_s > -np.inf, np.maximum(ends_s, through_s[self.push_link, bucket]), ends_s)
            pushed_s[:, bucket], sent_s = ends_s, np.maximum(sent_s, ends_s)
        return pushed_s

    def _in_turn(self, ready_s: Times) -> Times:
        """Times at which links have carried the pushes of each bucket if they carry nothing else."""
        through_s, ends_s = np.empty_like(self.nothing_s), self.nothing_s[:, 0]
        for bucket in reversed(range(self.shape.buckets)):
            begin_s = np.maximum(ready_s[:, bucket].min(axis=0), ends_s)
            ends_s = np.maximum(ends_s, begin_s + self.links.pushes_s[:, bucket])
            through_s[:, bucket] = ends_s
        return through_s

    def _through(self, ready_s: Times, released_s: Times, pushed_s: Times, evenly: bool) -> PushPullTimes:
        """Times at which links have carried each bucket's pushes and pulls, if concurrent transfers share them. pushed_s: the
        same for pushes alone. evenly: whether pulls take bandwidth from pushes."""
        pushes_s, pulls_s = self.links
        pull_begin_s = np.min(released_s, axis=0, where=released_s > -np.inf, initial=np.inf)
        pull_begin_s = np.broadcast_to(pull_begin_s, pulls_s.shape)
        if not evenly:
            return PushPullTimes(pushed_s, _processor_sharing_s(pull_begin_s, pulls_s))
        begin_s = np.maximum(ready_s.min(axis=0), np.concatenate([pushed_s[:, 1:], self.nothing_s[:, :1]], axis=1))
        ends_s = _processor_sharing_s(
            np.concatenate([begin_s, pull_begin_s], axis=1), np.concatenate([pushes_s, pulls_s], axis=1)
        )
        return PushPullTimes(*np.split(ends_s, 2, axis=1))

    def _served(self, state: _State, pushed_s: Times) -> tuple[Times, Times]:
        """Times at which each server has updated each bucket, and all of them: it processes requests in the order of
        arrival."""
        released_s, free_s = np.empty_like(self.updates_s), state.free_s
        for bucket in reversed(range(self.shape.buckets)):
            arrived_s, took_s = pushed_s[:, bucket], self.services_s[:, bucket]
            sent = arrived_s > -np.inf
            first_s = np.minimum.reduceat(np.where(sent, arrived_s, np.inf), self.firsts, axis=0)
            last_s = np.maximum.reduceat(arrived_s + took_s, self.firsts, axis=0)
            all_s = np.add.reduceat(took_s, self.firsts, axis=0)
            done_s = np.maximum(np.maximum(free_s, first_s) + all_s, last_s) + self.updates_s[:, bucket]
            has = first_s < np.inf
            released_s[:, bucket] = np.where(has, done_s, -np.inf)
            free_s = np.where(has, done_s, free_s)
        return released_s, free_s

    def _pulled(self, state: _State, moves: PushPullTimes, released_s: Times, through_s: Times) -> None:
        """Sets the times at which each group has each bucket. through_s: times at which links have carried the pulls."""
        ends_s = released_s[self.server_of] + moves.pulls_s
        ends_s = np.where(ends_s > -np.inf, np.maximum(ends_s, through_s[self.pull_link]), ends_s)
        for group, own in enumerate(self.of_group):
            state.arrived_s[group] = ends_s[own].max(axis=0)
        for bucket in range(self.shape.buckets) if self.shape.broadcasts else ():
            state.collective_s = np.maximum(state.collective_s, state.arrived_s[:, bucket]) + self.broadcasts_s[:, bucket]
            state.arrived_s[:, bucket] = state.collective_s


def _processor_sharing_s(begin_s: Times, took_s: Times) -> Times:
    """Time at which each message over a link has arrived if concurrent messages share it evenly (processor sharing), shape
    (links, messages, configurations); −∞ where nothing is sent. took_s: seconds without sharing, −∞ for no message."""
    left_s, ends_s, pending = took_s.copy(), np.full(took_s.shape, -np.inf), (took_s > -np.inf) & (begin_s < np.inf)
    now_s = np.min(begin_s, axis=1, keepdims=True, where=pending, initial=np.inf)
    now_s = np.where(now_s < np.inf, now_s, 0.0)
    # in each iteration a message begins or arrives
    while pending.any():
        under_way = pending & (begin_s <= now_s)
        count = np.maximum(under_way.sum(axis=1, keepdims=True), 1)
        shortest_s = np.min(left_s, axis=1, keepdims=True, where=under_way, initial=np.inf)
        next_s = np.min(begin_s, axis=1, keepdims=True, where=pending & ~under_way, initial=np.inf)
        until_s = np.minimum(now_s + count * shortest_s, next_s)
        until_s = np.where(until_s < np.inf, until_s, now_s)
        has_come = under_way & (left_s <= shortest_s) & (until_s < next_s)
        left_s = np.where(under_way, left_s - (until_s - now_s) / count, left_s)
        ends_s = np.where(has_come, until_s, ends_s)
        pending &= ~has_come
        now_s = until_s
    return ends_s


@dataclass
class _State:
    """State between steps: times at which each group begins the next step, has each bucket, and ends its last collective, and
    at which each server is free."""

    begin_s: Times
    arrived_s: Times
    collective_s: Times
    free_s: Times

    @classmethod
    def at_rest(cls, shape: TransferShape, configurations: int) -> _State:
        groups, servers = (np.zeros((count, configurations)) for count in (shape.groups, shape.servers))
        return cls(groups, np.zeros((shape.groups, shape.buckets, configurations)), groups, servers)
