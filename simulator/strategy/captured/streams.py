"""A step of a captured script by streams: what each stream of a rank class does when, and when the step reaches each event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.script import CapturedClass, CapturedScript
from scaleproof.simulator.common.communication import Dimension, label_of
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program
from scaleproof.simulator.strategy.captured.program import HOST_STREAM, Assembly, RankTasks, assembled_script
from scaleproof.simulator.strategy.job import Job

_STEPS: Final = 2
_HOST: Final = "host"
KERNELS: Final = "kernels"
_SENDS, _RECEIVES = "sends", "receives"
_HOST_COPIES: Final = (Dimension.TO_HOST.label, Dimension.FROM_HOST.label)


class StreamSpan(NamedTuple):
    """What a stream does for a time, in seconds since the step began. words: of kernels, their modules; of communication, its
    name. kernels: number of those in it. size_bytes: of communication, of its message or whole buffer."""

    stream: str
    phase: Phase
    start_s: float
    end_s: float
    words: str = ""
    kernels: int = 0
    size_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class ClassStreams:
    """The steady step of a rank class. streams: names of those that are used, the host first, communication last; spans: of
    all of them, without what the host has done in earlier steps. reached_s: seconds at which the stream of most kernels is
    where the host was at each recorded event, shape (events + 1,); they never decrease."""

    of: CapturedClass
    streams: tuple[str, ...]
    spans: Sequence[StreamSpan]
    reached_s: NDArray[np.float64]
    step_s: float


def class_streams(script: CapturedScript, job: Job, replicas: int) -> list[ClassStreams]:
    """A steady step of each rank class, on a job's cluster with a number of replicas."""
    built = assembled_script(script, job, replicas)
    timeline = simulate_steady(built.program, _STEPS)
    ends_s = timeline.step_ends_s()
    step = _Step(built, timeline.start_s[-1], timeline.end_s[-1], float(ends_s[-2]), float(ends_s[-1] - ends_s[-2]))
    return [step.of_class(number, one) for number, one in enumerate(script.classes)]


class _Step:
    """The last step of a timeline."""

    def __init__(
        self, built: Assembly, start_s: NDArray[np.float64], end_s: NDArray[np.float64], begin_s: float, step_s: float
    ) -> None:
        self._built, self._program, self._step_s = built, built.program, step_s
        self._start_s, self._end_s = np.maximum(0.0, start_s - begin_s), np.maximum(0.0, end_s - begin_s)

    def of_class(self, number: int, one: CapturedClass) -> ClassStreams:
        """The streams of a class."""
        tasks = self._built.tasks[number]
        all_spans = [*self._of_streams(number, tasks, one), *self._collectives(number), *self._messages(number)]
        spans = [span for span in all_spans if span.end_s > span.start_s]
        first = (_HOST, KERNELS)
        used = list(dict.fromkeys(span.stream for span in spans))
        streams = (*(name for name in first if name in used), *(name for name in used if name not in first))
        return ClassStreams(one, streams, spans, self._reached_s(tasks, len(one.events.kind)), self._step_s)

    def _of_streams(self, number: int, tasks: RankTasks, one: CapturedClass) -> Iterator[StreamSpan]:
        """Spans of the host and of kernels. Kernels between two waits are one span."""
        program = self._program
        launching = (program.rank == number) & (program.stream == HOST_STREAM) & (program.amount > 0)
        for row in np.flatnonzero(launching & (program.kind == Kind.COMPUTE)).tolist():
            yield self._span(row, _HOST, "launches kernels and communication")
        numbers = {program_number: recorded for recorded, program_number in tasks.streams.items()}
        for block in tasks.blocks:
            stream = int(program.stream[block.row])
            name = KERNELS if stream == MAIN_STREAM else f"side stream {numbers[stream]}"
            modules = [one.events.module[event] for event in block.events]
            yield self._span(block.row, name, _modules(modules), len(modules))

    def _collectives(self, number: int) -> Iterator[StreamSpan]:
        program = self._program
        for row in program.members.keys()[program.members.values == number].tolist():
            label = label_of(int(program.communication[row]))
            yield self._span(row, f"{label.split()[0]} communication", label)

    def _messages(self, number: int) -> Iterator[StreamSpan]:
        program = self._program
        for row in np.flatnonzero(program.kind == Kind.TRANSFER).tolist():
            label = label_of(int(program.communication[row]))
            copies = next((f"copies {way}" for way in _HOST_COPIES if label.startswith(way)), "")
            ends = ((program.rank[row], _SENDS), (program.peer[row], _RECEIVES))
            for rank, name in ((program.rank[row], copies),) if copies else ends:
                if rank == number:
                    yield self._span(row, name, label)

    def _span(self, row: int, stream: str, words: str, kernels: int = 0) -> StreamSpan:
        program: Program = self._program
        times = float(self._start_s[row]), float(self._end_s[row])
        return StreamSpan(stream, Phase(int(program.phase[row])), *times, words, kernels, float(program.message_bytes[row]))

    def _reached_s(self, tasks: RankTasks, events: int) -> NDArray[np.float64]:
        """See `ClassStreams`: events without a kernel on the main stream are at the next one that has one."""
        found = np.full(events + 1, np.inf)
        for block in (each for each in tasks.blocks if each.is_main):
            start_s, end_s = self._start_s[block.row], self._end_s[block.row]
            before = np.cumsum([0.0, *block.seconds[:-1]]) / (block.kernels_s or 1.0)
            found[list(block.events)] = start_s + before * (end_s - start_s)
        found[-1] = max([self._step_s, *found[np.isfinite(found)]])
        reached_s: NDArray[np.float64] = np.minimum.accumulate(found[::-1])[::-1]
        return reached_s


def _modules(paths: Sequence[str]) -> str:
    """'layers.0.attention to layers.1.norm' of the modules of consecutive kernels."""
    known = [path for path in paths if path]
    if not known:
        return ""
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
