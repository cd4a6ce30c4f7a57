"""Tasks of one rank class: blocks of kernels on its streams, the host that launches them, and its communication.

A block is a sequence of kernels that the host launches on one stream without anything between them that other streams or ranks
could wait for. The i-th of n kernels starts when the one before it has ended and the host has launched it. So a block ends at
the later of two times: the sum K of its kernels after the stream is free, and P after the host began to launch it, where
P = max over i of (launches 1 to i, then kernels i to n). Each block is a task of K seconds on its stream, one of P seconds
that occupies no stream, and one of its launches on the host's stream.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.captured.trace import Event, IssuedCollective, IssuedMessage, Launch, RankTrace, Recorded, Wait
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import MAIN_STREAM, Path, ProgramBuilder

# The stream of the host, and the first of other streams of a rank and of the groups whose collectives it leads.
HOST_STREAM: Final = 2
_FIRST_SIDE: Final = 3
_MOST_STREAMS: Final = 63
# Of work that the device does anyway: no resource, at one second per second.
_NO_PATH: Final = Path(0.0, 1.0)


class HostCosts(NamedTuple):
    """Seconds of the host per kernel and per collective, and whether it waits for each kernel."""

    kernel_s: float
    collective_s: float
    blocks: bool


class KernelBlock(NamedTuple):
    """A block of kernels: its task on its stream, the seconds of each kernel, their share that memory bandwidth bounds, whether
    it is on the main stream, and the numbers of the trace's events that launch them."""

    row: int
    seconds: Sequence[float]
    moves: float
    is_main: bool
    events: range

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels."""
        return sum(self.seconds)


class _Chain:
    """What the next task of a stream follows: rows in this step, and whether communication is among them."""

    __slots__ = ("communicates", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.communicates: Phase | None = None


class RankTasks:
    """Adds the tasks of a rank class to a program.

    longer_s: seconds by which each block takes longer, in order; none if empty. scale: factor on the seconds of kernels.
    communicate: adds a collective or a message after some tasks, and returns its row. blocks: those added so far;
    streams: numbers in the program of recorded streams.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        rank: int,
        host: HostCosts,
        scale: float,
        longer_s: Sequence[float],
        communicate: Callable[[IssuedCollective | IssuedMessage, Sequence[int]], int],
    ) -> None:
        self._builder, self._rank, self._host, self._scale, self._communicate = builder, rank, host, scale, communicate
        self._longer_s = itertools.chain(longer_s, itertools.repeat(0.0))
        self.streams: dict[int, int] = {}
        self._chains: defaultdict[int, _Chain] = defaultdict(_Chain)
        self._open: list[Launch] = []
        self._works: dict[int, tuple[list[int], Phase]] = {}
        self._recorded: dict[int, tuple[list[int], Phase | None]] = {}
        self._later: list[tuple[int, str, int]] = []
        self._host_row = self._event = -1
        self.blocks: list[KernelBlock] = []

    def add(self, trace: RankTrace, main: int) -> None:
        """Adds the events of a trace. main: number of the stream with the main work."""
        self.streams[main] = MAIN_STREAM
        if not self._host.blocks:
            # follows the host's last task of the previous step
            self._host_row = self._builder.compute(self._rank, Phase.WAIT, 0.0, stream=HOST_STREAM)
        for self._event, event in enumerate(trace.events):
            self._add(event)
        self._event += 1
        self._close()
        self._finish()

    def _add(self, event: Event) -> None:
        if isinstance(event, Launch):
            if self._open and (event.stream, event.phase) != self._open[-1][:2]:
                self._close()
            self._open.append(event)
            return
        self._close()
        if isinstance(event, Recorded):
            chain = self._begun(event.stream)
            self._recorded[event.event] = list(chain.rows), chain.communicates
        elif isinstance(event, Wait):
            self._wait(event)
        else:
            self._issue(event)

    def _close(self) -> None:
        """Adds the open block."""
        launches, self._open = self._open, []
        if not launches:
            return
        stream, phase = launches[0].stream, launches[0].phase
        seconds = [self._scale * one.time.seconds for one in launches]
        kernel_s = self._host.kernel_s
        if self._host.blocks:
            seconds = [one_s + kernel_s for one_s in seconds]
        total_s, longer_s = sum(seconds), next(self._longer_s)
        chain, begins = self._chains[stream], self._host_row
        after = self._announced(chain, stream)
        row = self._task(stream, phase, total_s + longer_s, after)
        moved_s = sum(one_s for one_s, one in zip(seconds, launches, strict=True) if one.time.moves)
        share, events = moved_s / total_s if total_s else 0.0, range(self._event - len(launches), self._event)
        self.blocks.append(KernelBlock(row, seconds, share, self._number(stream) == MAIN_STREAM, events))
        chain.rows, chain.communicates = [row], None
        if not self._host.blocks:
            path_s = longest_s(seconds, kernel_s) + longer_s
            self._host_row = self._builder.compute(self._rank, phase, kernel_s * len(launches), [begins], stream=HOST_STREAM)
            chain.rows.append(self._builder.background(self._rank, path_s, _NO_PATH, phase, [begins]))

    def _begun(self, stream: int) -> _Chain:
        """What the next task of a stream follows; at the beginning of a step, the stream's last task of the step before."""
        chain = self._chains[stream]
        if not chain.rows:
            chain.rows = [self._task(stream, Phase.WAIT, 0.0, ())]
        return chain

    def _announced(self, chain: _Chain, stream: int) -> list[int]:
        """What the next task of a stream follows. A wait for communication is a task of its own, so that it counts as such."""
        if chain.communicates is None or self._number(stream) != MAIN_STREAM:
            return chain.rows
        return [self._task(stream, chain.communicates, 0.0, chain.rows)]

    def _task(self, stream: int, phase: Phase, work_s: float, after: Sequence[int]) -> int:
        number = self._number(stream)
        return self._builder.compute(self._rank, phase, work_s, tuple(after), stream=number)

    def _number(self, stream: int) -> int:
        """The number of a recorded stream in the program."""
        if stream not in self.streams:
            self.streams[stream] = min(_MOST_STREAMS, _FIRST_SIDE + len(self.streams))
        return self.streams[stream]

    def _issue(self, event: IssuedCollective | IssuedMessage) -> None:
        """Issues communication, which follows the stream that it is issued on."""
        after = list(self._begun(event.stream).rows)
        if not self._host.blocks:
            self._host_row = self._builder.compute(
                self._rank, event.phase, self._host.collective_s, [self._host_row], stream=HOST_STREAM
            )
            after.append(self._host_row)
        row = self._communicate(event, after)
        phase = Phase.SYNCHRONISE if isinstance(event, IssuedCollective) else Phase.SEND if event.sends else Phase.RECEIVE
        rows, _ = self._works.get(event.work, ([], phase))
        self._works[event.work] = [*rows, row], phase

    def _wait(self, event: Wait) -> None:
        rows, phase, known = self._waited(event)
        if event.stream is None:
            self._host_waits(rows)
            return
        chain = self._chains[event.stream]
        chain.rows = list(dict.fromkeys([*chain.rows, *rows]))
        chain.communicates = phase if phase is not None else chain.communicates
        if not known:
            # it is the one of the step before, of communication: scripts have nothing else that lasts over steps
            chain.rows.append(self._task(event.stream, Phase.SYNCHRONISE, 0.0, chain.rows))
            self._later.append((chain.rows[-1], event.on, event.number))

    def _waited(self, event: Wait) -> tuple[Sequence[int], Phase | None, bool]:
        """Rows that a wait is for, the phase of the waiting if it is for communication, and whether they are known."""
        if event.on == "work" and event.number in self._works:
            return *self._works[event.number], True
        if event.on == "event" and event.number in self._recorded:
            return *self._recorded[event.number], True
        if event.on == "stream":
            chains = list(self._chains.values()) if event.number < 0 else [self._begun(event.number)]
            phases = [chain.communicates for chain in chains if chain.communicates is not None]
            return [row for chain in chains for row in chain.rows], phases[0] if phases else None, True
        return [], None, False

    def _host_waits(self, rows: Sequence[int]) -> None:
        """Makes the host wait, and with it all later launches."""
        if self._host.blocks:
            # all streams are the host's own
            main = self._chains[next(iter(self.streams))]
            main.rows = list(dict.fromkeys([*main.rows, *rows]))
            return
        self._host_row = self._builder.compute(self._rank, Phase.WAIT, 0.0, [self._host_row, *rows], stream=HOST_STREAM)

    def _finish(self) -> None:
        """Adds what the next step follows: waits at the end of a step, ends of blocks, and what it was waiting for."""
        for stream, chain in list(self._chains.items()):
            if chain.rows:
                self._task(stream, chain.communicates or Phase.OPTIMIZER, 0.0, chain.rows)
        for row, on, number in self._later:
            found = self._works.get(number) if on == "work" else self._recorded.get(number)
            if found is not None:
                self._builder.carry(row, found[0])


def longest_s(kernels_s: Sequence[float], launch_s: float) -> float:
    """Seconds from the first launch to the end of kernels that wait for their launches and for one another, in order."""
    end_s = 0.0
    for number, kernel_s in enumerate(kernels_s, start=1):
        end_s = max(end_s, number * launch_s) + kernel_s
    return end_s
