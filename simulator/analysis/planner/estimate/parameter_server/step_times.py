"""Times with servers: what a step of each of many configurations takes, and what it takes at least.

A step is followed in closed form for all configurations of one shape at once: passes, pushes bucket by bucket, servers that
work on one request after another, pulls. What is expected takes messages to share links with what goes beside them; what is
told at least does not, but no link carries more than it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import distinct
from scaleproof.simulator.analysis.planner.estimate.parameter_server.configurations import ServerConfigurations
from scaleproof.simulator.analysis.planner.estimate.parameter_server.transfers import PushPullTimes, TransferShape, Wired, wired
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import behind
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.shards import buckets

Times = NDArray[np.float64]
_Shared = Literal["not at all", "pushes first", "evenly"]

# Steps that are followed: the last differs from the one before by what steps take.
_STEPS: Final = 2
# Predictions leave out sharing that delays a step by less than a thousandth.
_SURE: Final = 0.998


def served_step_times(configurations: ServerConfigurations) -> StepTimes:
    """Of all configurations; the latter is what no prediction beats. Raises FieldError where one is not valid after all."""
    c = configurations
    expected_s, least_s = np.empty((2, len(c)))
    if not len(c):
        return StepTimes(expected_s, least_s)
    passed = distinct(c.workers, c.recompute)
    jobs = [_job(c, row) for row in passed.first.tolist()]
    links = distinct(c.workers, c.servers, c.placement, c.two_level, c.bucket)
    found = [wired(c.strategy(row).compile(jobs[passed.code[row]])) for row in links.first.tolist()]
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
    """Seconds of both passes over the layers that each bucket begins with, shape (2, buckets)."""
    kept = c.space.kept
    limit_bytes = c.space.buckets_bytes[bucket] if kept["overlap"] else np.inf
    parts = buckets(job.layers, 1, "bytes", job.element_bytes, limit_bytes, kept.get("sparse"), 1)
    costs, begins = job.costs(), [part.layer for part in parts]
    running = np.cumsum([[0.0, *costs.forward_s], [0.0, *costs.backward_s]], axis=1)
    pieces: Times = np.diff(running[:, [*begins, len(job.layers)]], axis=1)
    if rollout_s := kept.get("rollout_s"):
        # with all parameters
        pieces[0] = [*[0.0] * (len(parts) - 1), rollout_s + pieces[0].sum()]
    return pieces


class _Step:
    """Configurations of one shape. Arrays have them last."""

    def __init__(self, shape: TransferShape, links: Sequence[Wired], passes_s: Times) -> None:
        """passes_s: of both passes over each bucket's layers, shape (2, buckets, configurations)."""
        self.shape, self.wired = shape, links
        self.crew_of, self.server_of = np.array(shape.crew_of), np.array(shape.server_of)
        self.push_link, self.pull_link = np.array(shape.links)
        self.firsts = np.flatnonzero(np.diff(self.server_of, prepend=-1))
        self.of_crew = [np.flatnonzero(self.crew_of == crew) for crew in range(shape.crews)]
        self.forward_s, self.backward_s = passes_s[:, :, None] * self._all("pace")
        self.links = self._moves("links")
        self.nothing_s: Times = np.full(self.links.pushes_s.shape, -np.inf)
        names = "services_s", "updates_s", "sums_s", "spreads_s", "busy_s"
        self.services_s, self.updates_s, self.sums_s, self.spreads_s, self.busy_s = map(self._all, names)

    def _all(self, name: str) -> Times:
        return np.stack([getattr(one, name) for one in self.wired], axis=-1)

    def _moves(self, name: str) -> PushPullTimes:
        pushes, pulls = zip(*(getattr(one, name) for one in self.wired), strict=True)
        return PushPullTimes(np.stack(pushes, axis=-1), np.stack(pulls, axis=-1))

    def expected_s(self) -> Times:
        """Where messages share links with those for the same bucket, and in the middle between what follows where pulls leave
        links to pushes, as far as these can carry both in a step, and where they take as much of them."""
        moves = self._moves("shared")
        leaving_s = np.maximum(self._followed(moves, "pushes first"), self._both_s())
        expected: Times = (leaving_s + self._followed(moves, "evenly")) / 2
        return expected

    def _both_s(self) -> Times:
        """Until links that carry both ways have carried all buckets since some one was made."""
        sent_s = [np.cumsum(np.maximum(one, 0.0), axis=1) for one in self.links]
        carries_both = (sent_s[0][:, -1:] > 0) & (sent_s[1][:, -1:] > 0)
        busy_s = np.max(sent_s[0] + sent_s[1], axis=0, where=carries_both, initial=-np.inf)
        both_s: Times = (self._until_ready_s() + busy_s).max(axis=0)
        return both_s

    def least_s(self) -> Times:
        """Where nothing shares links, but no link carries more than it can."""
        busy_s = (self._until_ready_s() + self.busy_s).max(axis=0)
        least: Times = np.maximum(self._followed(self._moves("alone"), "not at all"), busy_s)
        return least

    def _until_ready_s(self) -> Times:
        """From the begin of a step until the gradients of each bucket are made, at least, shape (buckets, configurations)."""
        ready: Times = (self.forward_s.sum(axis=0) + behind(self.backward_s) + self.sums_s.transpose(1, 0, 2)).min(axis=1)
        return ready

    def _followed(self, moves: PushPullTimes, shared: _Shared) -> Times:
        """What a step takes after others. shared: how pushes and pulls share links."""
        state = _State.at_rest(self.shape, len(self.wired))
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
            sent_s = np.stack([pushed_s[own].max(axis=(0, 1)) for own in self.of_crew])
            state.begin_s = np.maximum(np.maximum(now_s, sent_s), state.arrived_s[:, 0])
            ends_s.append(state.begin_s.max(axis=0))
        step_s: Times = ends_s[-1] - ends_s[-2]
        return step_s

    def _passed(self, state: _State) -> tuple[Times, Times]:
        """When each crew is through with its passes, and when it has the gradients of each bucket, shape (crews, buckets,
        configurations)."""
        now_s = state.begin_s
        for bucket, forward_s in enumerate(self.forward_s):
            now_s = (np.maximum(now_s, state.arrived_s[:, bucket]) if bucket else now_s) + forward_s
        ready_s = np.empty_like(state.arrived_s)
        for bucket in reversed(range(self.shape.buckets)):
            now_s = now_s + self.backward_s[bucket]
            if self.shape.spreads:
                state.collective_s = np.maximum(state.collective_s, now_s) + self.sums_s[:, bucket]
            ready_s[:, bucket] = state.collective_s if self.shape.spreads else now_s
        return now_s, ready_s

    def _pushed(self, moves: PushPullTimes, ready_s: Times, through_s: Times) -> Times:
        """When each push ends: those over one connection follow one another. through_s: when links are through with pushes."""
        pushed_s, sent_s = np.empty_like(moves.pushes_s), np.full(moves.pushes_s[:, 0].shape, -np.inf)
        for bucket in reversed(range(self.shape.buckets)):
            ends_s = np.maximum(ready_s[self.crew_of, bucket], sent_s) + moves.pushes_s[:, bucket]
            # what is not sent ends never
            ends_s = np.where(ends_s > -np.inf, np.maximum(ends_s, through_s[self.push_link, bucket]), ends_s)
            pushed_s[:, bucket], sent_s = ends_s, np.maximum(sent_s, ends_s)
        return pushed_s

    def _in_turn(self, ready_s: Times) -> Times:
        """When links are through with the pushes of each bucket where they carry nothing else."""
        through_s, ends_s = np.empty_like(self.nothing_s), self.nothing_s[:, 0]
        for bucket in reversed(range(self.shape.buckets)):
            begin_s = np.maximum(ready_s[:, bucket].min(axis=0), ends_s)
            ends_s = np.maximum(ends_s, begin_s + self.links.pushes_s[:, bucket])
            through_s[:, bucket] = ends_s
        return through_s

    def _through(self, ready_s: Times, released_s: Times, pushed_s: Times, evenly: bool) -> PushPullTimes:
        """When links are through with each bucket, both ways, where what is on its way at a time shares them. pushed_s: where
        links carry pushes alone, which follow one another. evenly: whether pulls take from pushes."""
        pushes_s, pulls_s = self.links
        come_s = np.min(released_s, axis=0, where=released_s > -np.inf, initial=np.inf)
        come_s = np.broadcast_to(come_s, pulls_s.shape)
        if not evenly:
            return PushPullTimes(pushed_s, _side_by_side(come_s, pulls_s))
        begin_s = np.maximum(ready_s.min(axis=0), np.concatenate([pushed_s[:, 1:], self.nothing_s[:, :1]], axis=1))
        ends_s = _side_by_side(np.concatenate([begin_s, come_s], axis=1), np.concatenate([pushes_s, pulls_s], axis=1))
        return PushPullTimes(*np.split(ends_s, 2, axis=1))

    def _served(self, state: _State, pushed_s: Times) -> tuple[Times, Times]:
        """When each server has updated each bucket, and when all: it works on requests once they are there, in turn."""
        released_s, free_s = np.empty_like(self.updates_s), state.free_s
        for bucket in reversed(range(self.shape.buckets)):
            came_s, took_s = pushed_s[:, bucket], self.services_s[:, bucket]
            sent = came_s > -np.inf
            first_s = np.minimum.reduceat(np.where(sent, came_s, np.inf), self.firsts, axis=0)
            last_s = np.maximum.reduceat(came_s + took_s, self.firsts, axis=0)
            all_s = np.add.reduceat(took_s, self.firsts, axis=0)
            done_s = np.maximum(np.maximum(free_s, first_s) + all_s, last_s) + self.updates_s[:, bucket]
            has = first_s < np.inf
            released_s[:, bucket] = np.where(has, done_s, -np.inf)
            free_s = np.where(has, done_s, free_s)
        return released_s, free_s

    def _pulled(self, state: _State, moves: PushPullTimes, released_s: Times, through_s: Times) -> None:
        """When each crew has each bucket. through_s: when links are through with pulls."""
        ends_s = released_s[self.server_of] + moves.pulls_s
        ends_s = np.where(ends_s > -np.inf, np.maximum(ends_s, through_s[self.pull_link]), ends_s)
        for crew, own in enumerate(self.of_crew):
            state.arrived_s[crew] = ends_s[own].max(axis=0)
        for bucket in range(self.shape.buckets) if self.shape.spreads else ():
            state.collective_s = np.maximum(state.collective_s, state.arrived_s[:, bucket]) + self.spreads_s[:, bucket]
            state.arrived_s[:, bucket] = state.collective_s


def _side_by_side(begin_s: Times, took_s: Times) -> Times:
    """When each message over a link has come where those on their way share it evenly, shape (links, messages, configurations);
    −∞ where nothing is sent. took_s: alone, −∞ for nothing."""
    left_s, ends_s, coming = took_s.copy(), np.full(took_s.shape, -np.inf), (took_s > -np.inf) & (begin_s < np.inf)
    now_s = np.min(begin_s, axis=1, keepdims=True, where=coming, initial=np.inf)
    now_s = np.where(now_s < np.inf, now_s, 0.0)
    # at each instant one is under way from now on, or has come
    while coming.any():
        under_way = coming & (begin_s <= now_s)
        count = np.maximum(under_way.sum(axis=1, keepdims=True), 1)
        shortest_s = np.min(left_s, axis=1, keepdims=True, where=under_way, initial=np.inf)
        next_s = np.min(begin_s, axis=1, keepdims=True, where=coming & ~under_way, initial=np.inf)
        until_s = np.minimum(now_s + count * shortest_s, next_s)
        until_s = np.where(until_s < np.inf, until_s, now_s)
        has_come = under_way & (left_s <= shortest_s) & (until_s < next_s)
        left_s = np.where(under_way, left_s - (until_s - now_s) / count, left_s)
        ends_s = np.where(has_come, until_s, ends_s)
        coming &= ~has_come
        now_s = until_s
    return ends_s


@dataclass
class _State:
    """What a step leaves to the next: when each crew begins it, when it has each bucket, when its last collective ends, and
    when each server is free."""

    begin_s: Times
    arrived_s: Times
    collective_s: Times
    free_s: Times

    @classmethod
    def at_rest(cls, shape: TransferShape, points: int) -> _State:
        crews, servers = (np.zeros((count, points)) for count in (shape.crews, shape.servers))
        return cls(crews, np.zeros((shape.crews, shape.buckets, points)), crews, servers)
