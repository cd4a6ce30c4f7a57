"""Turns: what holds tasks up beside what they follow: a connection that two share, a receiver's word, a rank's own pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.engine.durations import Times, paced_rows
from scaleproof.simulator.engine.fair_queue import TOGETHER
from scaleproof.simulator.program import Program
from scaleproof.simulator.program.speed_profile import Pacing

Places = NDArray[np.int64]


class Paced(NamedTuple):
    """Places of tasks of ranks that are not steady; latency_s: before their work, shape (tasks, 1)."""

    places: Places
    latency_s: Times
    pacing: Pacing

    def last(self, start: Times, end: Times, took: Times) -> None:
        """Ends them when their ranks get their work done."""
        worked_s = took[self.places] - self.latency_s
        end[self.places] = self.pacing.end_s(start[self.places] + self.latency_s, worked_s)


class Partners(NamedTuple):
    """Places of transfers that share a connection, and of the tasks before them on their senders' sides."""

    first: Places
    second: Places
    before_first: Places
    before_second: Places

    def take_turns(self, start: Times, end: Times, took: Times) -> None:
        """Of each two, that of the rank that came later moves first, of two that came together the first."""
        turned = end[self.before_second] > end[self.before_first] * (1 + TOGETHER)
        later_s = np.where(turned, end[self.second], end[self.first])
        start[self.first] = np.where(turned, later_s, start[self.first])
        start[self.second] = np.where(turned, start[self.second], later_s)
        for places in (self.first, self.second):
            end[places] = start[places] + took[places]


class Told(NamedTuple):
    """Places of transfers, of the tasks after which their receivers tell that they are ready, and of what that is behind."""

    rows: Places
    told_after: Places
    behind: Places

    def wait(self, start: Times, end: Times, took: Times, heard: Times) -> None:
        """heard: when the sender of each transfer heard that its receiver is ready; those of lower levels are there."""
        told = end[self.told_after]
        queued = heard[self.behind] < told * (1 - TOGETHER)
        heard[self.rows] = np.where(queued, end[self.behind], told)
        start[self.rows] = np.maximum(start[self.rows], heard[self.rows])
        end[self.rows] = start[self.rows] + took[self.rows]


class RendezvousDelays:
    """Which tasks of a program those are, by level."""

    def __init__(self, program: Program, level: Places, places: Places) -> None:
        """level, places: of each row."""
        self._level, self._places = level, places
        self.paced, self.told, self.partners = self._paced(program), self._told(program), self._partners(program)

    def _paced(self, program: Program) -> dict[int, Paced]:
        found = {}
        for at, (rows,) in self._by_level([paced_rows(program)]):
            paces = [program.ranks.paces[rank] for rank in program.rank[rows].tolist()]
            found[at] = Paced(self._places[rows], program.latency_s[rows].reshape(len(rows), -1), Pacing(paces))
        return found

    def _told(self, program: Program) -> dict[int, Told]:
        """By level, which is above that of what they may be behind."""
        rows = np.flatnonzero(program.told_after >= 0)
        columns = rows, program.told_after[rows], program.behind[rows]
        return {at: Told(*(self._places[rows] for rows in found)) for at, found in self._by_level(columns)}

    def _partners(self, program: Program) -> dict[int, Partners]:
        """By level, which is that of both, since both follow the same."""
        if not (program.partner >= 0).any():
            return {}
        return {at: Partners(*(self._places[rows] for rows in found)) for at, found in self._by_level(program.partners())}

    def _by_level(
        self, columns: Sequence[NDArray[np.signedinteger[Any]]]
    ) -> Iterator[tuple[int, list[NDArray[np.signedinteger[Any]]]]]:
        """Each level that there is among the rows of the first column, and the rows of all columns there."""
        of_row = self._level[columns[0]]
        for at in np.unique(of_row).tolist():
            yield at, [rows[of_row == at] for rows in columns]
