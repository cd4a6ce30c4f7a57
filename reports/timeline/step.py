"""The part of a run that a timeline shows: a steady step, or a stretch of time of asynchronous ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import label_of, layers_label
from scaleproof.simulator.common.spans import Phase, Spans, Stream
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.run.run import Run

_MOST_RANKS: Final = 16
# number of step times shown of asynchronous ranks
_STEP_TIMES: Final = 4
# a kind in addition to the phases: the second part of a split backward pass, for the gradients of weights
WEIGHT: Final = len(Phase)
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD)
KIND_NAMES: Final = [phase.label for phase in Phase] + ["weight"]
NAMES: Final = {
    WEIGHT: "gradients of weights", Phase.SYNCHRONISE: "collective", Phase.WAIT: "waiting for server or workers",
    Phase.INPUT: "waiting for input",
}  # fmt: skip
# number of kinds of collectives that a legend names
_MOST_LABELS: Final = 3


class Step(NamedTuple):
    """The spans of a run's ranks with times from the first work in the step, and their kinds: a Phase, or WEIGHT.

    chunk: index of the rank's model stage of a pass, 0 if not applicable. chunks: number of stages per rank. ranks: the ranks
    shown, of many the first ones, the slowest and the last; of: total number of ranks. number: number of the step, None for a
    stretch of time.
    """

    run: Run
    number: int | None
    spans: Spans
    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    chunks: int
    arrival_ms: NDArray[np.float64]
    start_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    ranks: list[int]
    of: int

    @property
    def rows_words(self) -> str:
        """', 16 of 48 rows, with the slowest', or "" if all are shown."""
        return f", {len(self.ranks)} of {self.of} rows, with the slowest" if self.of > len(self.ranks) else ""

    @property
    def length_ms(self) -> float:
        """Milliseconds from the begin of the step to its last end."""
        return float(self.end_ms.max())

    def facts(self) -> dict[str, Any]:
        """A summary to compare steps: for each kind the number of spans, and the sums of their starts and ends."""
        sums = {}
        for kind in np.unique(self.kind):
            mine = self.kind == kind
            sums[KIND_NAMES[kind]] = [int(mine.sum()), *(float(ms[mine].sum().round(6)) for ms in (self.start_ms, self.end_ms))]
        framework = {"framework": self.run.framework, "framework_is_default": self.run.framework_is_default}
        return {
            "strategy": self.run.strategy,
            **framework,
            "ranks": self.of,
            "step_ms": round(self.run.step_time_s * 1e3, 6),
            "kinds": sums,
        }


def span_words(spans: Spans, i: int, kind: int) -> str:
    """What span `i` does: 'backward', or 'TP all-reduce, layers 0-11, 64.0 MiB in 24 calls'."""
    label = label_of(int(spans.communication[i]))
    if not label:
        return NAMES.get(kind, KIND_NAMES[kind])
    layers = layers_label(int(spans.first_layer[i]), int(spans.last_layer[i]))
    calls = f" in {spans.calls[i]:,} calls" if spans.calls[i] > 1 else ""
    size = f"{format_bytes(float(spans.message_bytes[i]))}{calls}" if spans.message_bytes[i] > 0 else ""
    return ", ".join(filter(None, [label, layers, size]))


def kind_words(kind: int, steps: Iterable[Step]) -> str:
    """What spans of a kind do: 'forward', or 'DP all-reduce, TP all-reduce' where their communication is known."""
    numbers = {number for step in steps for number in np.unique(step.spans.communication[step.kind == kind]).tolist()}
    labels = [label_of(number) for number in sorted(numbers) if number >= 0]
    name = NAMES.get(kind, KIND_NAMES[kind])
    if not labels:
        return name
    more = [f"{len(labels) - _MOST_LABELS} more"] if len(labels) > _MOST_LABELS + 1 else labels[_MOST_LABELS:]
    return ", ".join([*labels[:_MOST_LABELS], *more]) if kind == Phase.SYNCHRONISE else f"{name} ({labels[0].split()[0]})"


def typical_step(run: Run, most: int = _MOST_RANKS) -> Step | None:
    """The steady step whose time is closest to the run's step time; for asynchronous ranks a stretch of several step times.
    None if the run has no spans of a step. most: maximum number of ranks."""
    if run.spans is None:
        return None
    numbers = np.unique(run.spans.step[run.spans.step >= 1])
    if not len(numbers):
        return None
    if len(numbers) > len(run.step_times_s):
        return _step(run, None, _stretch(run.spans, _STEP_TIMES * run.step_time_s), most)
    times_s = dict(enumerate(run.step_times_s, start=1))
    number = min(map(int, numbers), key=lambda n: abs(times_s.get(n, np.inf) - run.step_time_s))
    return _step(run, number, run.spans.where(run.spans.step == number), most)


def _stretch(spans: Spans, length_s: float) -> Spans:
    """The spans within a time after the first one."""
    until_s = spans.arrival_s.min() + length_s
    cut = {name: np.minimum(getattr(spans, name), until_s) for name in ("arrival_s", "start_s", "end_s")}
    return replace(spans, **cut).where(spans.arrival_s < until_s)


def _step(run: Run, number: int | None, spans: Spans, most: int) -> Step:
    ranks: list[int] = np.unique(spans.rank).tolist()
    shown = _shown(spans, ranks, most)
    spans = spans.where(np.isin(spans.rank, shown))
    zero_s = spans.arrival_s.min() if number is None else _begin_s(spans)
    spans = spans.where(spans.end_s >= zero_s)
    times_s = (spans.arrival_s, spans.start_s, spans.end_s)
    arrival_ms, start_ms, end_ms = (np.maximum(0.0, time_s - zero_s) * 1e3 for time_s in times_s)
    chunk = _chunks(spans)
    chunks = int(chunk.max(initial=0)) + 1
    return Step(run, number, spans, _kinds(spans), chunk, chunks, arrival_ms, start_ms, end_ms, shown, len(ranks))


def _shown(spans: Spans, ranks: Sequence[int], most: int) -> list[int]:
    """At most `most` of the sorted ranks: the one whose passes take longest, the median one, the last, and the first ones."""
    passes = np.isin(spans.phase, _PASSES) & (spans.stream == Stream.MAIN)
    work_s = np.zeros(len(ranks))
    np.add.at(work_s, np.searchsorted(ranks, spans.rank[passes]), (spans.end_s - spans.start_s)[passes])
    median = int(np.argsort(work_s, kind="stable")[len(ranks) // 2])
    chosen = list(dict.fromkeys([int(work_s.argmax()), len(ranks) - 1, median, *range(len(ranks))]))
    return [ranks[place] for place in sorted(chosen[:most])]


def _begin_s(spans: Spans) -> float:
    """The time at which the first rank begins to work in a step; others may have waited for it since their previous step."""
    begins_s = spans.start_s[(spans.phase != Phase.WAIT) & (spans.end_s > spans.start_s)]
    return float(begins_s.min(initial=np.inf)) if len(begins_s) else float(spans.arrival_s.min())


def _chunks(spans: Spans) -> NDArray[np.int64]:
    """Index of the rank's model stage of each pass."""
    chunk = np.zeros(len(spans), dtype=np.int64)
    passes = (spans.stage >= 0) & np.isin(spans.phase, _PASSES)
    for rank in np.unique(spans.rank):
        mine = passes & (spans.rank == rank)
        chunk[mine] = np.unique(spans.stage[mine], return_inverse=True)[1]
    return chunk


def _kinds(spans: Spans) -> NDArray[np.int64]:
    """The kind of each span: its phase, or WEIGHT for the last part of a backward pass that other passes interrupt.

    Consecutive parts belong to one pass, whose gradients are summed or parameters gathered piece by piece.
    """
    kind = spans.phase.astype(np.int64)
    passes = np.flatnonzero((spans.stream == Stream.MAIN) & np.isin(kind, _PASSES) & (spans.microbatch >= 0))
    passes = passes[np.lexsort((spans.start_s[passes], spans.rank[passes]))]
    columns = (spans.rank, spans.step, spans.stage, spans.microbatch, kind)
    same = np.unique(np.stack([column[passes] for column in columns]), axis=1, return_inverse=True)[1].ravel()
    # positions of the spans of each pass, in their order
    order = np.argsort(same, kind="stable")
    again = np.diff(same[order]) == 0
    gaps = np.diff(order)
    if not (again & (gaps > 1)).any():
        return kind
    last = np.append(np.diff(same[order]) != 0, True) & np.append(False, again)
    kind[passes[order[last]]] = WEIGHT
    return kind
