"""Delays of tasks in replay in addition to their dependencies: shared connections, ready messages of receivers, and ranks whose
speed changes with time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.engine.durations import Times, variable_speed_rows
from scaleproof.simulator.engine.fair_queue import TOGETHER
from scaleproof.simulator.program import Program

Places = NDArray[np.int64]


class VariableSpeedTasks(NamedTuple):
    """Tasks of ranks whose speed changes with time. latency_s: before their work, shape (tasks, 1)."""

    places: Places
    latency_s: Times
    profiles: SpeedProfiles

    def set_ends(self, start: Times, end: Times, seconds: Times) -> None:
        """Sets the ends of the tasks. seconds: durations at normal speed; all of shape (places, samples)."""
        work_s = seconds[self.places] - self.latency_s
        end[self.places] = self.profiles.end_s(start[self.places] + self.latency_s, work_s)


class Partners(NamedTuple):
    """Pairs of transfers that share a connection, and the tasks before them on their senders, all as places."""

    first: Places
    second: Places
    before_first: Places
    before_second: Places

    def serialise(self, start: Times, end: Times, seconds: Times) -> None:
        """Sets start and end of the transfers: of each pair, that of the rank that was ready later moves first; of two that
        were ready together the first. All arrays of shape (places, samples)."""
        second_first = end[self.before_second] > end[self.before_first] * (1 + TOGETHER)
        later_s = np.where(second_first, end[self.second], end[self.first])
        start[self.first] = np.where(second_first, later_s, start[self.first])
        start[self.second] = np.where(second_first, start[self.second], later_s)
        for places in (self.first, self.second):
            end[places] = start[places] + seconds[places]


class ReadyMessages(NamedTuple):
    """Transfers that wait for a ready message of their receivers, the tasks after which the receivers send it, and the
    transfers that it is queued behind, all as places."""

    rows: Places
    sent_after: Places
    queued_behind: Places

    def wait(self, start: Times, end: Times, seconds: Times, ready: Times) -> None:
        """Sets start and end of the transfers, and `ready`: times at which their senders receive the ready messages.

        Those of lower levels are already set. All arrays of shape (places, samples).
        """
        sent_s = end[self.sent_after]
        is_queued = ready[self.queued_behind] < sent_s * (1 - TOGETHER)
        ready[self.rows] = np.where(is_queued, end[self.queued_behind], sent_s)
        start[self.rows] = np.maximum(start[self.rows], ready[self.rows])
        end[self.rows] = start[self.rows] + seconds[self.rows]


class RendezvousDelays:
    """The delayed tasks of a program by level: `variable_speed`, `ready_messages` and `partners`."""

    def __init__(self, program: Program, level: Places, places: Places) -> None:
        """level, places: of each row."""
        self._level, self._places = level, places
        self.variable_speed = self._variable_speed(program)
        self.ready_messages = self._ready_messages(program)
        self.partners = self._partners(program)

    def _variable_speed(self, program: Program) -> dict[int, VariableSpeedTasks]:
        tasks = {}
        for at, (rows,) in self._by_level([variable_speed_rows(program)]):
            profiles = SpeedProfiles([program.ranks.paces[rank] for rank in program.rank[rows].tolist()])
            latency_s = program.latency_s[rows].reshape(len(rows), -1)
            tasks[at] = VariableSpeedTasks(self._places[rows], latency_s, profiles)
        return tasks

    def _ready_messages(self, program: Program) -> dict[int, ReadyMessages]:
        """By the level of the transfer, which is above that of the transfer that its message may be queued behind."""
        rows = np.flatnonzero(program.ready_after >= 0)
        columns = rows, program.ready_after[rows], program.behind[rows]
        return {at: ReadyMessages(*(self._places[rows] for rows in part)) for at, part in self._by_level(columns)}

    def _partners(self, program: Program) -> dict[int, Partners]:
        """By the level of both transfers, which is the same since both have the same dependencies."""
        if not (program.partner >= 0).any():
            return {}
        return {at: Partners(*(self._places[rows] for rows in part)) for at, part in self._by_level(program.partners())}

    def _by_level(
        self, columns: Sequence[NDArray[np.signedinteger[Any]]]
    ) -> Iterator[tuple[int, list[NDArray[np.signedinteger[Any]]]]]:
        """The levels of the rows of the first column, each with the part of all columns at that level."""
        levels = self._level[columns[0]]
        for at in np.unique(levels).tolist():
            yield at, [rows[levels == at] for rows in columns]
