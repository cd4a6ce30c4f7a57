"""Step: what of a run a timeline shows: a steady step, or where ranks go each on its own a stretch of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import Phase, Run, Spans, Stream

_MOST_RANKS: Final = 16
# where ranks go each on its own, so many step times are shown
_STEP_TIMES: Final = 4
# a kind beside the phases: of backward passes in two parts the second, which makes the gradients of weights
WEIGHT: Final = len(Phase)
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD)
KIND_NAMES: Final = [phase.label for phase in Phase] + ["weight"]


class Step(NamedTuple):
    """The spans of a run's first ranks, with times from the step's begin, and the kind of each: a Phase, or WEIGHT.

    chunk: of the stages of the model that a rank has, which one a pass is in; 0 where that does not apply. chunks: how many
    a rank has. ranks: those shown; of: how many there are. number: the step's, None where it is not one step.
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
    def length_ms(self) -> float:
        return float(self.end_ms.max())

    def facts(self) -> dict[str, Any]:
        """Enough to tell whether another step looks like this one: of each kind how many spans there are, and the sums of
        when they start and end."""
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


def typical_step(run: Run) -> Step | None:
    """The steady step whose time is closest to the run's step time; a stretch of some step times where steps of the ranks are
    not of the same time. None where the run has no spans of one."""
    if run.spans is None:
        return None
    numbers = np.unique(run.spans.step[run.spans.step >= 1])
    if not len(numbers):
        return None
    if len(numbers) > len(run.step_times_s):
        return _step(run, None, _stretch(run.spans, _STEP_TIMES * run.step_time_s))
    times_s = dict(enumerate(run.step_times_s, start=1))
    number = min(map(int, numbers), key=lambda n: abs(times_s.get(n, np.inf) - run.step_time_s))
    return _step(run, number, run.spans.where(run.spans.step == number))


def _stretch(spans: Spans, length_s: float) -> Spans:
    """What there is of spans until so long after the first of them."""
    until_s = spans.arrival_s.min() + length_s
    cut = {name: np.minimum(getattr(spans, name), until_s) for name in ("arrival_s", "start_s", "end_s")}
    return replace(spans, **cut).where(spans.arrival_s < until_s)


def _step(run: Run, number: int | None, spans: Spans) -> Step:
    ranks = np.unique(spans.rank)
    spans = spans.where(np.isin(spans.rank, ranks[:_MOST_RANKS]))
    zero_s = spans.arrival_s.min()
    arrival_ms, start_ms, end_ms = ((times_s - zero_s) * 1e3 for times_s in (spans.arrival_s, spans.start_s, spans.end_s))
    chunk = _chunks(spans)
    chunks = int(chunk.max(initial=0)) + 1
    shown = ranks[:_MOST_RANKS].tolist()
    return Step(run, number, spans, _kinds(spans), chunk, chunks, arrival_ms, start_ms, end_ms, shown, len(ranks))


def _chunks(spans: Spans) -> NDArray[np.int64]:
    """Which of its rank's stages a pass is in."""
    chunk = np.zeros(len(spans), dtype=np.int64)
    passes = (spans.stage >= 0) & np.isin(spans.phase, _PASSES)
    for rank in np.unique(spans.rank):
        mine = passes & (spans.rank == rank)
        chunk[mine] = np.unique(spans.stage[mine], return_inverse=True)[1]
    return chunk


def _kinds(spans: Spans) -> NDArray[np.int64]:
    """Phases; WEIGHT for what a rank does last for a microbatch, where backward passes come in parts with others in between.

    Parts that follow one another are pieces of one pass, whose gradients are summed or parameters gathered piece by piece.
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
