"""Timeline: start and end of all tasks in all steps, which is the result of all engines, and the spans that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.communication import UNKNOWN
from scaleproof.simulator.common.csr import CsrLists, in_order
from scaleproof.simulator.common.spans import COMPUTE_PHASES, SPAN_COLUMNS, Phase, Spans, Stream, TimeIntervals
from scaleproof.simulator.engine.servers import Applied, Busy
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program, Rows

Times = NDArray[np.float64]
Block = dict[str, NDArray[Any]]
# Columns of spans that describe their communication.
_LABELS: Final = ("communication", "message_bytes", "calls", "first_layer", "last_layer")


@dataclass(frozen=True)
class Timeline:
    """Start and end of all tasks in seconds, shape (steps, tasks).

    server_busy: intervals of work of each server class, by rank class. applied: results of pushes if the program is not static;
    then not all ranks have made all steps, and tasks that did not end have no times (NaN).
    """

    program: Program
    start_s: Times
    end_s: Times
    server_busy: Mapping[int, Sequence[Busy]] = field(default_factory=dict)
    applied: Applied | None = None

    def step_ends_s(self) -> Times:
        """End of each step on the last training rank in seconds, shape (steps,)."""
        program = self.program
        training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
        ends: Times = self.end_s[:, training].max(axis=1)
        return ends

    def first(self, steps: int) -> Timeline:
        """The timeline of the first steps."""
        busy = {rank: [work for work in works if work.step < steps] for rank, works in self.server_busy.items()}
        return replace(self, start_s=self.start_s[:steps], end_s=self.end_s[:steps], server_busy=busy)

    def spans(self) -> Spans:
        """Spans of all rank classes in the steps after the first: work and waiting on the main streams, and communication."""
        main = _MainStreams(self.program)
        blocks = list(self._server_work())
        for step in range(1, len(self.start_s)):
            blocks += [*self._work(step, main), self._waits(step, main), *self._communication(step)]
        return Spans.of({name: np.concatenate([block[name] for block in blocks]) for name in SPAN_COLUMNS})

    def _server_work(self) -> Iterator[Block]:
        for rank, works in self.server_busy.items():
            columns = np.array([(busy.step, busy.start_s, busy.end_s) for busy in works]).reshape(-1, 3)
            step, start_s, end_s = columns.T
            yield _block(rank, step, Stream.MAIN, Phase.OPTIMIZER, start_s, start_s, end_s)

    def _work(self, step: int, main: _MainStreams) -> Iterator[Block]:
        """Spans of the tasks of the main streams: their model-parallel collectives, which are all placed first, and their
        work."""
        program, start_s, end_s = self.program, self.start_s[step], self.end_s[step]
        for tasks, begin, end, labels in self._in_passes:
            began_s, moved_s = (start_s[tasks] + share * program.latency_s[tasks] for share in (begin, end))
            yield self._task_spans(tasks, step, Stream.MAIN, Phase.SYNCHRONISE, began_s, began_s, moved_s) | labels
        tasks = main.tasks[program.amount[main.tasks] > 0]
        began_s = start_s[tasks] + program.latency_s[tasks]
        yield self._task_spans(tasks, step, Stream.MAIN, program.phase[tasks], began_s, began_s, end_s[tasks])

    @cached_property
    def _in_passes(self) -> list[tuple[Rows, Times | float, Times | float, Block]]:
        """Collectives within tasks, by kind: the tasks, begin and end as shares of the latency of each, and labels."""
        program = self.program
        exchanges = (program.stream == MAIN_STREAM) & (program.kind == Kind.COMPUTE)
        passes = np.flatnonzero(exchanges & (program.first_layer >= 0))
        known = program.in_passes() if program.in_passes is not None and len(passes) else None
        if known is None or not len(known.numbers):
            return [(np.flatnonzero(exchanges & (program.latency_s > 0)), 0.0, 1.0, {})]
        first, last = program.first_layer[passes], program.last_layer[passes]
        totals = known.over(first, last, program.phase[passes] == Phase.BACKWARD)
        kinds: list[tuple[Rows, Times | float, Times | float, Block]] = []
        for kind, number in enumerate(known.numbers.tolist()):
            own = totals.calls[kind] > 0
            columns = (np.full(len(own), number), totals.message_bytes[kind], totals.calls[kind], first, last)
            labels = {name: column[own] for name, column in zip(_LABELS, columns, strict=True)}
            kinds.append((passes[own], totals.begin[kind, own], totals.end[kind, own], labels))
        unlabelled = np.flatnonzero(exchanges & (program.first_layer < 0) & (program.latency_s > 0))
        return [*kinds, (unlabelled, 0.0, 1.0, {})]

    def _waits(self, step: int, main: _MainStreams) -> Block:
        """Spans of the waiting before each task of the main streams.

        There is one span for each interval in which a dependency, or what it queued behind, is in progress, and one for the
        rest. Each arrives at the end of the previous one.
        """
        free_s = np.where(main.is_first, self.end_s[step - 1, main.previous], self.end_s[step, main.previous])
        start_s = self.start_s[step, main.tasks]
        waits = start_s > free_s
        tasks, free_s, start_s = main.tasks[waits], free_s[waits], start_s[waits]
        wait, before, began_s, ended_s = self._dependencies(step, tasks)
        queue, queued = self._queued(step, tasks, np.unique(wait[self._is_collective[before]]), free_s, start_s)
        owner, moved = np.concatenate([wait, queue]), np.concatenate([before, queued])
        moved_s = np.concatenate([began_s, self.start_s[step, queued]])
        stopped_s = np.concatenate([ended_s, self.end_s[step, queued]])
        in_wait = TimeIntervals(owner, np.maximum(moved_s, free_s[owner]), np.minimum(stopped_s, start_s[owner]))
        moving, number = in_wait.divided(self.program.communication[moved].astype(np.int64))
        span = np.concatenate([moving.owner, np.arange(len(tasks))])
        number = np.concatenate([number, np.full(len(tasks), UNKNOWN)])
        order = in_order(span)
        span, number = span[order], number[order]
        begin_s, end_s = (np.concatenate([moved_s, start_s])[order] for moved_s in (moving.start_s, moving.end_s))
        arrival_s = np.roll(end_s, 1)
        first = np.diff(span, prepend=-1) > 0
        arrival_s[first] = free_s[span[first]]
        own = self.program.phase[tasks]
        only_waits = (self.program.amount[tasks] == 0) & ~np.isin(own, COMPUTE_PHASES)
        phase = np.where(only_waits, own, self._wait_phases(tasks, wait, before, ended_s))
        is_long = end_s > arrival_s
        span, times_s = span[is_long], (arrival_s[is_long], begin_s[is_long], end_s[is_long])
        return self._task_spans(tasks[span], step, Stream.MAIN, phase[span], *times_s) | {"communication": number[is_long]}

    def _dependencies(self, step: int, tasks: Rows) -> tuple[Rows, Rows, Times, Times]:
        """Dependencies of tasks in a step, without those of their streams: index of the task, row of the dependency, its start
        and end."""
        now, earlier = self.program.dependencies.take(tasks), self.program.carried.take(tasks)
        start_s, end_s = (
            np.concatenate([side[step, now.values], side[step - 1, earlier.values]]) for side in (self.start_s, self.end_s)
        )
        wait, before = np.concatenate([now.keys(), earlier.keys()]), np.concatenate([now.values, earlier.values])
        return wait, before, start_s, end_s

    def _queued(self, step: int, tasks: Rows, waits: Rows, free_s: Times, start_s: Times) -> tuple[Rows, Rows]:
        """Collectives of the rank during waits for a collective: index of the task, and row of the collective.

        waits: indices of the tasks that wait for a collective; free_s, start_s: begin and end of all waits.
        """
        program, begin_s, end_s = self.program, self.start_s[step], self.end_s[step]
        collectives = np.flatnonzero(self._is_collective)
        members = program.members.take(collectives)
        order = np.argsort(begin_s[collectives[members.keys()]], kind="stable")
        rows, ranks = collectives[members.keys()][order], members.values[order]
        by_rank = CsrLists.grouped(ranks, rows, len(program.ranks.names))
        first, stop = np.zeros((2, len(waits)), dtype=np.int64)
        rank_of = program.rank[tasks[waits]]
        for rank in np.unique(rank_of).tolist():
            mine, offset = np.flatnonzero(rank_of == rank), by_rank.offsets[rank]
            own = by_rank.values[offset : by_rank.offsets[rank + 1]]
            # the running maximum includes collectives that end before an earlier one
            first[mine] = offset + np.searchsorted(np.maximum.accumulate(end_s[own]), free_s[waits[mine]], side="right")
            stop[mine] = offset + np.searchsorted(begin_s[own], start_s[waits[mine]], side="left")
        queued = CsrLists.slices(by_rank.values, first, stop)
        return waits[queued.keys()], queued.values

    @cached_property
    def _is_collective(self) -> NDArray[np.bool_]:
        return np.asarray(self.program.kind == Kind.COLLECTIVE)

    def _wait_phases(self, tasks: Rows, wait: Rows, before: Rows, ended_s: Times) -> NDArray[np.int64]:
        """The phase of waits before work, shape (tasks,): that of the dependency that ends last. Work of the rank itself that
        occupies none of its main streams, such as kernels whose launches the host delays, keeps its own phase."""
        program = self.program
        order = np.lexsort((-np.arange(len(wait)), ended_s, wait))
        last = order[np.flatnonzero(np.diff(wait[order], append=-1))]
        kind, receives = program.kind[before[last]], program.peer[before[last]] == program.rank[tasks[wait[last]]]
        own = (kind == Kind.COMPUTE) & (program.rank[before[last]] == program.rank[tasks[wait[last]]])
        own &= np.isin(program.phase[before[last]], COMPUTE_PHASES)
        phase = np.full(len(tasks), int(Phase.WAIT))
        phase[wait[last]] = np.select(
            [kind == Kind.COLLECTIVE, (kind == Kind.TRANSFER) & receives, kind == Kind.TRANSFER, own],
            [Phase.SYNCHRONISE, Phase.RECEIVE, Phase.SEND, program.phase[before[last]]],
            Phase.WAIT,
        )
        return phase

    def _communication(self, step: int) -> Iterator[Block]:
        """Spans of transfers on both sides, and of collectives on all members."""
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
            calls = program.calls[tasks] * (program.amount[tasks] > 0)
            changes = {
                "rank": ranks, "size_bytes": program.amount[tasks], "calls": calls,
                "communication": program.communication[tasks], "message_bytes": program.message_bytes[tasks] * calls,
                "first_layer": program.first_layer[tasks], "last_layer": program.last_layer[tasks],
            }  # fmt: skip
            yield self._task_spans(tasks, step, stream, phase, start_s, start_s, end_s) | changes

    def _task_spans(
        self, tasks: Rows, step: int, stream: Stream, phase: ArrayLike, arrival_s: Times, start_s: Times, end_s: Times
    ) -> Block:
        """One span per task, on the task's rank."""
        program = self.program
        labels = program.stage[tasks], program.microbatch[tasks]
        return _block(program.rank[tasks], step, stream, phase, arrival_s, start_s, end_s, *labels)


def _block(
    rank: ArrayLike, step: ArrayLike, stream: Stream, phase: ArrayLike, arrival_s: Times, start_s: Times, end_s: Times,
    stage: ArrayLike = -1, microbatch: ArrayLike = -1,
) -> Block:  # fmt: skip
    """Columns of spans; scalars are repeated to the length of the times."""
    columns = (rank, step, stream, phase, stage, microbatch, arrival_s, start_s, end_s, 0.0, UNKNOWN, 0.0, 0, UNKNOWN, UNKNOWN)
    return {
        name: np.asarray(column) if np.ndim(column) else np.full(len(end_s), column)
        for name, column in zip(SPAN_COLUMNS, columns, strict=True)
    }


class _MainStreams:
    """The tasks of all main streams, one stream after another.

    is_first: whether a task is the first of its stream. previous: the task before it in its stream; for the first one the last,
    which is that of the step before.
    """

    def __init__(self, program: Program) -> None:
        tasks = np.flatnonzero(program.stream == MAIN_STREAM)
        self.tasks: Rows = tasks[in_order(program.rank[tasks].astype(np.int64))]
        rank = program.rank[self.tasks]
        self.is_first = np.diff(rank, prepend=-1) > 0
        self.previous = np.roll(self.tasks, 1)
        self.previous[self.is_first] = self.tasks[np.diff(rank, append=len(program.ranks.names)) > 0]
