"""Timeline: when every task of every step started and ended, and the spans that follow from it. One for all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.servers import Busy
from simulator.program import MAIN_LANE, Kind, Program
from simulator.run import SPAN_COLUMNS, Phase, Run, Spans, Stream, from_spans


@dataclass(frozen=True)
class Timeline:
    """start_s, end_s: shape (steps, tasks). server_busy: what each server class did, by rank class."""

    program: Program
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    server_busy: Mapping[int, Sequence[Busy]] = field(default_factory=dict)

    def run(self, **fields: Any) -> Run:
        """The steps after the first as a predicted Run; `fields` are what a program does not know, such as its scenario."""
        ranks = self.program.ranks
        return from_spans(
            self.spans(),
            self.step_ends_s(),
            servers=ranks.is_server,
            multiplicity=ranks.multiplicity,
            origin="predicted",
            rank_names=ranks.names,
            **fields,
        )

    def step_ends_s(self) -> NDArray[np.float64]:
        """When the last training rank ended each step, shape (steps,)."""
        program = self.program
        training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
        ends: NDArray[np.float64] = self.end_s[:, training].max(axis=1)
        return ends

    def spans(self) -> Spans:
        """What every rank class did in the steps after the first: its main lane with its waits, and its communication."""
        rows: list[tuple[float, ...]] = []
        for step in range(1, len(self.start_s)):
            self._main_spans(rows, step)
        for rank, stretches in self.server_busy.items():
            for busy in stretches:
                label = (rank, busy.step, Stream.MAIN, Phase.OPTIMIZER, -1, -1)
                rows.append((*label, busy.start_s, busy.start_s, busy.end_s, 0.0))
        main = np.array(rows, dtype=np.float64).reshape(-1, len(SPAN_COLUMNS)).T
        communication = [self._communication_spans(step) for step in range(1, len(self.start_s))]
        columns = np.concatenate([main, *communication], axis=1)
        return Spans.of(dict(zip(SPAN_COLUMNS, columns, strict=True)))

    def _main_spans(self, rows: list[tuple[float, ...]], step: int) -> None:
        """Each task of a main lane, and before it the wait for what it depends on."""
        program = self.program
        waits = _Waits(program, self.start_s[step].tolist(), self.end_s[step].tolist())
        free_s = self._lane_free_s(step).tolist()
        main = np.flatnonzero(program.lane == MAIN_LANE)
        columns = (program.rank, program.phase, program.stage, program.microbatch, program.amount)
        for task, rank, phase, *label, amount in zip(main.tolist(), *(c[main].tolist() for c in columns), strict=True):
            arrival_s, begin_s, done_s = free_s[rank], waits.start_s[task], waits.end_s[task]
            if begin_s > arrival_s:
                waited_for = phase if amount == 0 else waits.phase(task, rank)
                moving_s = begin_s - waits.moving_s(task, arrival_s, begin_s)
                rows.append((rank, step, Stream.MAIN, waited_for, *label, arrival_s, moving_s, begin_s, 0.0))
            if amount > 0:
                rows.append((rank, step, Stream.MAIN, phase, *label, begin_s, begin_s, done_s, 0.0))
            free_s[rank] = done_s

    def _lane_free_s(self, step: int) -> NDArray[np.float64]:
        """When each rank's main lane had ended the previous step."""
        program = self.program
        free_s = np.zeros(len(program.ranks.names))
        if step > 0:
            main = program.lane == MAIN_LANE
            np.maximum.at(free_s, program.rank[main], self.end_s[step - 1][main])
        return free_s

    def _communication_spans(self, step: int) -> NDArray[np.float64]:
        """Transfers on both sides, collectives on every member; shape (columns, spans)."""
        program = self.program
        transfers = np.flatnonzero(program.kind == Kind.TRANSFER)
        collectives = np.flatnonzero(program.kind == Kind.COLLECTIVE)
        taking_part = np.diff(program.members.offsets)[collectives]
        members = program.members.values
        tasks = np.concatenate([transfers, transfers, np.repeat(collectives, taking_part)])
        ranks = np.concatenate([program.rank[transfers], program.peer[transfers], members])
        phases = np.repeat([Phase.SEND, Phase.RECEIVE, Phase.SYNCHRONISE], [len(transfers), len(transfers), len(members)])
        start_s = self.start_s[step][tasks]
        same = np.ones(len(tasks))
        columns = (
            ranks, step * same, Stream.COMMUNICATION * same, phases, program.stage[tasks], program.microbatch[tasks],
            start_s, start_s, self.end_s[step][tasks], program.amount[tasks],
        )  # fmt: skip
        return np.array(columns, dtype=np.float64)


class _Waits:
    """What the tasks of one step waited for."""

    def __init__(self, program: Program, start_s: list[float], end_s: list[float]) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self._dependencies = program.dependencies.lists()
        self._kind = program.kind.tolist()
        self._peer = program.peer.tolist()

    def phase(self, task: int, rank: int) -> int:
        """A wait before work is named after the dependency that ended last."""
        last = max(self._dependencies[task], key=self.end_s.__getitem__)
        match self._kind[last]:
            case Kind.TRANSFER:
                return Phase.RECEIVE if self._peer[last] == rank else Phase.SEND
            case Kind.COLLECTIVE:
                return Phase.SYNCHRONISE
            case _:
                return Phase.WAIT

    def moving_s(self, task: int, begin_s: float, end_s: float) -> float:
        """How long, of the wait from begin to end, what the task depends on was under way (overlaps count once)."""
        covered_s, until_s = 0.0, begin_s
        for start_s, stop_s in sorted((self.start_s[d], self.end_s[d]) for d in self._dependencies[task]):
            covered_s += max(0.0, min(stop_s, end_s) - max(until_s, start_s))
            until_s = max(until_s, min(stop_s, end_s))
        return covered_s
