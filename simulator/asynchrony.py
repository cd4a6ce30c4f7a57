"""Asynchrony: what servers and the workers that go each on its own come to: their steps, clocks, staleness, queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.gate import Barrier
from simulator.program import MAIN_LANE, Kind, Program, Rows
from simulator.run import Phase, Run, Spans, divided, from_spans

if TYPE_CHECKING:
    from simulator.engine.timeline import Timeline

Times = NDArray[np.float64]

# Of a run's steps the first ones, in which workers that began together part: this share does not count.
_WARM_UP: Final = 0.25
_ROUNDING: Final = 1e-9
# What resources are called that are one end of a message's way.
_ENDS: Final = ("in", "out", "both")


class Window(NamedTuple):
    """The part of a run that counts: from begin to end all ranks together took `steps` steps each, on average.

    With backups a step is one that an update ended.
    """

    begin_s: float
    end_s: float
    steps: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def has(self, times_s: Times) -> NDArray[np.bool_]:
        """Which instants lie in it, its begin not included."""
        result: NDArray[np.bool_] = (times_s > self.begin_s) & (times_s <= self.end_s)
        return result

    def covers_s(self, start_s: Times, end_s: Times) -> Times:
        """How much of each stretch lies in it; none of what has no time."""
        covered_s = np.minimum(end_s, self.end_s) - np.maximum(start_s, self.begin_s)
        return np.where(covered_s > 0, covered_s, 0.0)


def run_of(timeline: Timeline, samples: int, **fields: Any) -> Run:
    """The Run of ranks that take steps each on its own: a step is as many as there are ranks, by whichever of them.

    Its time is that of the run over the steps taken, once the first quarter of them is over (of all, where they are units).
    samples: of a step of all ranks; with backups those that are dropped do not count. Steps of spans are each rank's own,
    counted from 1.
    """
    ranks, gate = timeline.program.ranks, timeline.program.gate
    window = window_of(timeline)
    if isinstance(gate, Barrier):
        pushes = len(np.unique(timeline.program.peer[timeline.program.kind == Kind.SERVE]))
        samples = samples * (pushes - gate.backups) // pushes
    run = from_spans(
        _cut(_before_the_first(timeline).spans(), window),
        np.array([window.begin_s, window.end_s]),
        servers=ranks.is_server,
        multiplicity=ranks.multiplicity,
        origin="predicted",
        rank_names=ranks.names,
        samples=samples,
        **fields,
    )
    return divided(run, window.steps)


def _before_the_first(timeline: Timeline) -> Timeline:
    """With a step before the first, in which all ended when its rank began: what followed nothing now follows that."""
    began_s = timeline.program.ranks.late_s[timeline.program.rank][None]
    start_s, end_s = (np.concatenate([began_s, times]) for times in (timeline.start_s, timeline.end_s))
    busy = {rank: [replace(one, step=one.step + 1) for one in of_rank] for rank, of_rank in timeline.server_busy.items()}
    return replace(timeline, start_s=start_s, end_s=end_s, server_busy=busy)


def _cut(spans: Spans, window: Window) -> Spans:
    """What of spans lies in the window."""
    cut = {
        name: np.clip(getattr(spans, name), window.begin_s, window.end_s) for name in ("arrival_s", "start_s", "end_s")
    }
    return replace(spans, **cut).where(cut["end_s"] > cut["arrival_s"])


def window_of(timeline: Timeline) -> Window:
    """The part of a run that counts: of a static program all steps but the first."""
    program = timeline.program
    if program.is_static:
        ends_s = timeline.step_ends_s()
        return Window(float(ends_s[0]), float(ends_s[-1]), len(ends_s) - 1)
    if isinstance(program.gate, Barrier):
        ends_s = _updates_s(timeline)
        first = int(_WARM_UP * len(ends_s))
        return Window(float(ends_s[first]), float(ends_s[-1]), len(ends_s) - 1 - first)
    last = np.array([lane[-1] for lane in _training_lanes(program)])
    done_s, ranks = timeline.end_s[:, last], program.ranks.multiplicity[program.rank[last]]
    ended = np.isfinite(done_s)
    order = np.argsort(done_s[ended], kind="stable")
    taken = np.cumsum(np.broadcast_to(ranks, done_s.shape)[ended][order]) / ranks.sum()
    ends_s = done_s[ended][order]
    if program.units:
        return Window(0.0, float(ends_s[-1]), float(taken[-1]))
    # until the first rank that has ended a step begins no other
    stop = np.searchsorted(ends_s, np.where(ended, done_s, -np.inf).max(axis=0)[ended.any(axis=0)].min(), side="right") - 1
    begin = np.searchsorted(taken, _WARM_UP * taken[stop])
    # whole rounds, where there is one: steps come in bunches where workers keep in step
    rounds = np.floor(taken[stop] - taken[begin] + _ROUNDING) or np.inf
    end = np.searchsorted(taken, min(taken[begin] + rounds, taken[stop]) + _ROUNDING, side="right") - 1
    return Window(float(ends_s[begin]), float(ends_s[end]), float(taken[end] - taken[begin]))


def _training_lanes(program: Program) -> list[list[int]]:
    """The tasks of the main lane of each training rank class."""
    training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
    return [lane for lane in program.lanes().lists() if training[lane[0]]]


def _updates_s(timeline: Timeline) -> Times:
    """When each round of a barrier ended on the last of its servers, shape (rounds,)."""
    assert timeline.applied is not None
    applied_s, program = timeline.applied.applied_s, timeline.program
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    _, queue = np.unique(np.stack([program.rank[serves], program.bucket[serves]]), axis=1, return_inverse=True)
    counted = timeline.applied.behind[:, serves] != DROPPED
    rounds_s = [np.unique(applied_s[:, serves][:, queue == one][counted[:, queue == one]]) for one in range(queue.max() + 1)]
    count = min(map(len, rounds_s))
    latest_s: Times = np.max([of_queue[:count] for of_queue in rounds_s], axis=0)
    return latest_s


def summary(timeline: Timeline) -> dict[str, Any] | None:
    """What became of a program's servers, as plain data; None where it has none. Of the part of the run that counts:

    clock_gap: when a rank begins the work of a step, how many more pushes of its own the parameters have than of the rank of
    which they have the fewest; version_staleness: how many updates by others the parameters got between a worker's pull and
    the application of its push, which only pushes that are not dropped have. Both are distributions: `mean`, `p50`, `p95`,
    `max` and a `histogram` of counts. A clock gap is of workers and what a bound is set on, version staleness is of gradients
    and what convergence suffers from: workers in step have no gap, and each other's updates in between all the same.
    dropped: share of pushes that came too late. updates_per_s: of the parameters. utilisation: share of the time in which
    servers serve, their mean and the busiest's. queue_length: requests that wait to be served, mean over time and servers, and
    the most. busy: share of its time, or of what it carries, for which the busiest of each kind is busy; bottleneck: which is.
    """
    program = timeline.program
    if not program.has_servers:
        return None
    window = window_of(timeline)
    pushes = _Pushes(timeline)
    busy = {"server CPU": pushes.utilisation(window)[1], **_links(timeline, window), **_lanes(timeline, window)}
    ...
