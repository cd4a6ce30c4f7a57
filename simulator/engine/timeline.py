"""Timeline: when every task of every step started and ended, and the spans that follow from it. One for all engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.csr import Ragged, in_order
from scaleproof.simulator.common.spans import Stretches
from scaleproof.simulator.engine.servers import Applied, Busy
from scaleproof.simulator.program import MAIN_LANE, Kind, Program, Rows
from scaleproof.simulator.run.run import COMPUTE_PHASES, SPAN_COLUMNS, Phase, Spans, Stream

Times = NDArray[np.float64]
Block = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Timeline:
    """start_s, end_s: shape (steps, tasks). server_busy: what each server class did, by rank class.

    applied: what became of pushes, where the program is not static; not all ranks then took all steps, and what did not end has
    no time (not a number).
    """

    program: Program
    start_s: Times
    end_s: Times
    server_busy: Mapping[int, Sequence[Busy]] = field(default_factory=dict)
    applied: Applied | None = None

    def step_ends_s(self) -> Times:
        """When the last training rank ended each step, shape (steps,)."""
        program = self.program
        training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
        ends: Times = self.end_s[:, training].max(axis=1)
        return ends

    def first(self, steps: int) -> Timeline:
        """The first steps alone."""
        busy = {rank: [one for one in stretches if one.step < steps] for rank, stretches in self.server_busy.items()}
        return replace(self, start_s=self.start_s[:steps], end_s=self.end_s[:steps], server_busy=busy)

    def spans(self) -> Spans:
        """What every rank class did in the steps after the first: its main lane with its waits, and its communication."""
        lanes = _MainLanes(self.program)
        blocks = list(self._served())
        for step in range(1, len(self.start_s)):
            blocks += [*self._worked(step, lanes), self._waited(step, lanes), *self._communicated(step)]
        return Spans.of({name: np.concatenate([block[name] for block in blocks]) for name in SPAN_COLUMNS})

    def _served(self) -> Iterator[Block]:
        """What servers did."""
        for rank, stretches in self.server_busy.items():
            columns = np.array([(busy.step, busy.start_s, busy.end_s) for busy in stretches]).reshape(-1, 3)
            step, start_s, end_s = columns.T
            yield _block(rank, step, Stream.MAIN, Phase.OPTIMIZER, start_s, start_s, end_s)

    def _worked(self, step: int, lanes: _MainLanes) -> Iterator[Block]:
        """The tasks of the main lanes: what they exchange with ranks in lockstep, told as if it came first, then their work."""
        program, start_s, end_s = self.program, self.start_s[step], self.end_s[step]
        tasks = lanes.tasks[program.latency_s[lanes.tasks] > 0]
        moved_s = start_s[tasks] + program.latency_s[tasks]
        yield self._of_tasks(tasks, step, Stream.MAIN, Phase.SYNCHRONISE, start_s[tasks], start_s[tasks], moved_s)
        tasks = lanes.tasks[program.amount[lanes.tasks] > 0]
        began_s = start_s[tasks] + program.latency_s[tasks]
        yield self._of_tasks(tasks, step, Stream.MAIN, program.phase[tasks], began_s, began_s, end_s[tasks])

    def _waited(self, step: int, lanes: _MainLanes) -> Block:
        """Before each task of the main lanes the wait for what it follows: a span for every stretch of it in which something
        of that was under way, or what it queued behind, from where the one before ended, and one for what is left."""
        free_s = np.where(lanes.is_first, self.end_s[step - 1, lanes.previous], self.end_s[step, lanes.previous])
        start_s = self.start_s[step, lanes.tasks]
        waits = start_s > free_s
        tasks, free_s, start_s = lanes.tasks[waits], free_s[waits], start_s[waits]
        wait, before, began_s, ended_s = self._before(step, tasks)
        queue, queued_s, left_s = self._queued(step, tasks, np.unique(wait[self._is_collective[before]]), free_s, start_s)
        owner = np.concatenate([wait, queue])
        moved_s, stopped_s = np.concatenate([began_s, queued_s]), np.concatenate([ended_s, left_s])
        moving = Stretches(owner, np.maximum(moved_s, free_s[owner]), np.minimum(stopped_s, start_s[owner])).union()
        span = np.concatenate([moving.owner, np.arange(len(tasks))])
        order = in_order(span)
        span = span[order]
        begin_s, end_s = (np.concatenate([moved_s, start_s])[order] for moved_s in (moving.start_s, moving.end_s))
        arrival_s = np.roll(end_s, 1)
        first = np.diff(span, prepend=-1) > 0
        arrival_s[first] = free_s[span[first]]
        own = self.program.phase[tasks]
        only_waits = (self.program.amount[tasks] == 0) & ~np.isin(own, COMPUTE_PHASES)
        phase = np.where(only_waits, own, self._named(tasks, wait, before, ended_s))
        some = end_s > arrival_s
        span, times_s = span[some], (arrival_s[some], begin_s[some], end_s[some])
        return self._of_tasks(tasks[span], step, Stream.MAIN, phase[span], *times_s)

    def _before(self, step: int, tasks: Rows) -> tuple[Rows, Rows, Times, Times]:
        """What tasks of a step follow beside their lanes: index of the task, row of what it follows, its start and end."""
        now, earlier = self.program.dependencies.take(tasks), self.program.carried.take(tasks)
        start_s, end_s = (
            np.concatenate([side[step, now.values], side[step - 1, earlier.values]]) for side in (self.start_s, self.end_s)
        )
        wait, before = np.concatenate([now.keys(), earlier.keys()]), np.concatenate([now.values, earlier.values])
        return wait, before, start_s, end_s

    def _queued(self, step: int, tasks: Rows, waits: Rows, free_s: Times, start_s: Times) -> tuple[Rows, Times, Times]:
        """Of waits for a collective the rank's collectives meanwhile: index of the task, start and end. waits: which of the
        tasks wait for one; free_s, start_s: since when, until when."""
        program, begin_s, end_s = self.program, self.start_s[step], self.end_s[step]
        collectives = np.flatnonzero(self._is_collective)
        members = program.members.take(collectives)
        in_turn = np.argsort(begin_s[collectives[members.keys()]], kind="stable")
        rows, ranks = collectives[members.keys()][in_turn], members.values[in_turn]
        of_rank = Ragged.grouped(ranks, rows, len(program.ranks.names))
        first, stop = np.zeros((2, len(waits)), dtype=np.int64)
        rank_of = program.rank[tasks[waits]]
        for rank in np.unique(rank_of).tolist():
            mine, offset = np.flatnonzero(rank_of == rank), of_rank.offsets[rank]
            own = of_rank.values[offset : of_rank.offsets[rank + 1]]
            # of collectives that end before an earlier one does, none is left out
            first[mine] = offset + np.searchsorted(np.maximum.accumulate(end_s[own]), free_s[waits[mine]], side="right")
            stop[mine] = offset + np.searchsorted(begin_s[own], start_s[waits[mine]], side="left")
        found = Ragged.slices(of_rank.values, first, stop)
        return waits[found.keys()], begin_s[found.values], end_s[found.values]

    @cached_property
    def _is_collective(self) -> NDArray[np.bool_]:
        return np.asarray(self.program.kind == Kind.COLLECTIVE)

    def _named(self, tasks: Rows, wait: Rows, before: Rows, ended_s: Times) -> NDArray[np.int64]:
        """The phase after which waits before work are named: that of what they wait for, the last to end. Shape (tasks,)."""
        program = self.program
        order = np.lexsort((-np.arange(len(wait)), ended_s, wait))
        last = order[np.flatnonzero(np.diff(wait[order], append=-1))]
        kind, receives = program.kind[before[last]], program.peer[before[last]] == program.rank[tasks[wait[last]]]
        phase = np.full(len(tasks), int(Phase.WAIT))
        phase[wait[last]] = np.select(
            [kind == Kind.COLLECTIVE, (kind == Kind.TRANSFER) & receives, kind == Kind.TRANSFER],
            [Phase.SYNCHRONISE, Phase.RECEIVE, Phase.SEND],
            Phase.WAIT,
        )
        return phase

    def _communicated(self, step: int) -> Iterator[Block]:
        """Transfers on both sides, collectives on every member."""
        program, stream = self.program, Stream.COMMUNICATION
        transfers = np.flatnonzero(program.kind == Kind.TRANSFER)
        collectives = np.flatnonzero(program.kind == Kind.COLLECTIVE)
        members = program.members.take(collectives)
        sides = (
            (transfers, program.rank[transfers], Phase.SEND),
            (transfers, program.peer[transfers], Phase.RECEIVE),
            (collectives[members.keys()], members.values, Phase.SYNCHRONISE),
        )
        for tasks, ranks, phase in sides:
            start_s, end_s = self.start_s[step, tasks], self.end_s[step, tasks]
            moved = {"rank": ranks, "size_bytes": program.amount[tasks]}
            yield self._of_tasks(tasks, step, stream, phase, start_s, start_s, end_s) | moved

    def _of_tasks(
        self, tasks: Rows, step: int, stream: Stream, phase: ArrayLike, arrival_s: Times, start_s: Times, end_s: Times
    ) -> Block:
        """A span of each task, on the rank that owns it."""
        program = self.program
        labels = program.stage[tasks], program.microbatch[tasks]
        return _block(program.rank[tasks], step, stream, phase, arrival_s, start_s, end_s, *labels)


def _block(
    rank: ArrayLike, step: ArrayLike, stream: Stream, phase: ArrayLike, arrival_s: Times, start_s: Times, end_s: Times,
    stage: ArrayLike = -1, microbatch: ArrayLike = -1,
) -> Block:  # fmt: skip
    """Columns of spans, as long as the times."""
    columns = (rank, step, stream, phase, stage, microbatch, arrival_s, start_s, end_s, 0.0)
    return {
        name: np.asarray(column) if np.ndim(column) else np.full(len(end_s), column)
        for name, column in zip(SPAN_COLUMNS, columns, strict=True)
    }


class _MainLanes:
    """The tasks of all main lanes, one lane after another. is_first: of its lane. previous: the task before it in its lane;
    before the first its last, of the step before."""

    def __init__(self, program: Program) -> None:
        tasks = np.flatnonzero(program.lane == MAIN_LANE)
        self.tasks: Rows = tasks[in_order(program.rank[tasks].astype(np.int64))]
        rank = program.rank[self.tasks]
        self.is_first = np.diff(rank, prepend=-1) > 0
        self.previous = np.roll(self.tasks, 1)
        self.previous[self.is_first] = self.tasks[np.diff(rank, append=len(program.ranks.names)) > 0]
