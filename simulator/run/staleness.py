"""Asynchrony: what servers and the workers that go each on its own come to: their steps, clocks, staleness, queues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import MAIN_LANE, Kind, Program, Rows
from scaleproof.simulator.program.consistency import DROPPED, Bsp
from scaleproof.simulator.run.run import SPAN_COLUMNS, Phase, Run, Spans, Stream, divided, from_spans

Times = NDArray[np.float64]

# Of a run's steps the first ones, in which workers that began together part: this share does not count.
_WARM_UP: Final = 0.25
_ROUNDING: Final = 1e-9
# What the names of resources end in that are one end of a message's way.
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
    program, window = timeline.program, window_of(timeline)
    if isinstance(program.gate, Bsp):
        pushes = len(_pushing(program))
        samples = samples * (pushes - program.gate.backups) // pushes
    blocks = [_cut(_before_the_first(timeline).spans(), window)]
    if program.units:
        blocks.append(_idle_at_the_end(timeline, window))
    run = from_spans(
        Spans.of({name: np.concatenate([getattr(block, name) for block in blocks]) for name in SPAN_COLUMNS}),
        np.array([window.begin_s, window.end_s]),
        servers=program.ranks.is_server,
        multiplicity=program.ranks.multiplicity,
        origin="predicted",
        rank_names=program.ranks.names,
        samples=samples,
        **fields,
    )
    return divided(run, window.steps)


def _idle_at_the_end(timeline: Timeline, window: Window) -> Spans:
    """What ranks wait for that have no unit left while others still have one."""
    ends_s = _ends_s(timeline)
    last_s = np.nan_to_num(ends_s, nan=0.0).max(axis=0)
    rank = timeline.program.rank[[lane[-1] for lane in _training_lanes(timeline.program)]]
    step = np.isfinite(ends_s).sum(axis=0)
    columns = (rank, step, Stream.MAIN, Phase.SYNCHRONISE, -1, -1, last_s, window.end_s, window.end_s, 0.0)
    some = last_s < window.end_s
    of_all = {name: np.broadcast_to(column, len(rank)) for name, column in zip(SPAN_COLUMNS, columns, strict=True)}
    return Spans.of(of_all).where(some)


def _before_the_first(timeline: Timeline) -> Timeline:
    """With a step before the first, in which all ended when its rank began: what followed nothing now follows that."""
    began_s = timeline.program.ranks.late_s[timeline.program.rank][None]
    start_s, end_s = (np.concatenate([began_s, times]) for times in (timeline.start_s, timeline.end_s))
    busy = {rank: [replace(one, step=one.step + 1) for one in of_rank] for rank, of_rank in timeline.server_busy.items()}
    return replace(timeline, start_s=start_s, end_s=end_s, server_busy=busy)


def _cut(spans: Spans, window: Window) -> Spans:
    """What of spans lies in the window."""
    cut = {name: np.clip(getattr(spans, name), window.begin_s, window.end_s) for name in ("arrival_s", "start_s", "end_s")}
    return replace(spans, **cut).where(cut["end_s"] > cut["arrival_s"])


def window_of(timeline: Timeline) -> Window:
    """The part of a run that counts: of a static program all steps but the first."""
    program = timeline.program
    if program.is_static:
        ends_s = timeline.step_ends_s()
        return Window(float(ends_s[0]), float(ends_s[-1]), len(ends_s) - 1)
    done_s, ranks = _ends_s(timeline), program.ranks.multiplicity[[program.rank[lane[0]] for lane in _training_lanes(program)]]
    if isinstance(program.gate, Bsp):
        return window_of_rounds(_updates_s(timeline), done_s)
    if program.units:
        ended = np.isfinite(done_s)
        return Window(0.0, float(done_s[ended].max()), float((ended * ranks).sum() / ranks.sum()))
    return window_of_steps(done_s, ranks)


def window_of_rounds(rounds_s: Times, done_s: Times) -> Window:
    """Of rounds of a barrier, of which each ended at `rounds_s`; done_s: as `window_of_steps` has it."""
    rounds_s = rounds_s[rounds_s <= _stop_s(done_s)]
    first = int(_WARM_UP * len(rounds_s))
    return Window(float(rounds_s[first]), float(rounds_s[-1]), len(rounds_s) - 1 - first)


def window_of_steps(done_s: Times, ranks: NDArray[np.integer]) -> Window:
    """Of ranks that go each on its own, which ended their steps at `done_s`, of shape (steps, classes), not a number where they
    did not; ranks: of each class."""
    ended = np.isfinite(done_s)
    order = np.argsort(done_s[ended], kind="stable")
    taken = np.cumsum(np.broadcast_to(ranks, done_s.shape)[ended][order]) / ranks.sum()
    ends_s = done_s[ended][order]
    stop = np.searchsorted(ends_s, _stop_s(done_s), side="right") - 1
    begin = np.searchsorted(taken, _WARM_UP * taken[stop])
    # whole rounds, where there is one: steps come in bunches where workers keep in step
    rounds = np.floor(taken[stop] - taken[begin] + _ROUNDING) or np.inf
    end = np.searchsorted(taken, min(taken[begin] + rounds, taken[stop]) + _ROUNDING, side="right") - 1
    return Window(float(ends_s[begin]), float(ends_s[end]), float(taken[end] - taken[begin]))


def _stop_s(done_s: Times) -> float:
    """When the first rank has ended its last step: from then on it is not all of them."""
    ended = np.isfinite(done_s)
    return float(np.where(ended, done_s, -np.inf).max(axis=0)[ended.any(axis=0)].min())


def _ends_s(timeline: Timeline) -> Times:
    """When each training rank class ended its steps, shape (steps, classes)."""
    return timeline.end_s[:, [lane[-1] for lane in _training_lanes(timeline.program)]]


def _pushing(program: Program) -> Rows:
    """The rank classes that push."""
    return np.unique(program.peer[program.kind == Kind.SERVE])


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
    which they have the fewest. Where nothing keeps ranks together it grows as long as the run does. version_staleness: how
    many updates by others the parameters got between a worker's pull and the application of its push; dropped pushes have
    none. Both are distributions: `mean`, `p50`, `p95`, `max` and a `histogram` of counts. A clock gap is of workers, and what a
    bound is set on; version staleness is of gradients, and what convergence suffers from: workers in step have no gap, and
    each other's updates in between all the same.
    dropped: share of pushes that came too late. updates_per_s: of the parameters. utilisation: share of the time in which
    servers serve, their mean and the busiest's. queue_length: requests that wait to be served, mean over time and servers, and
    the most. busy: share of its time, or of what it carries, for which the busiest of each kind is busy; bottleneck: which is.
    """
    program = timeline.program
    if not program.has_servers:
        return None
    window = window_of(timeline)
    queues = [_QueueStatistics(timeline, rank, window) for rank in timeline.server_busy]
    servers = [int(program.ranks.multiplicity[rank]) for rank in timeline.server_busy]
    serving = [queue.busy_share() for queue in queues]
    busy = {"server CPU": max(serving)} | _links(timeline, window) | _lanes(timeline, window)
    behind, dropped = _staleness(timeline, window)
    return {
        "clock_gap": _clock_gap(timeline, window),
        "version_staleness": behind,
        "dropped": dropped,
        "updates_per_s": _updates(timeline, window) / window.length_s,
        "utilisation": {"mean": float(np.average(serving, weights=servers)), "max": max(serving)},
        "queue_length": {
            "mean": float(np.average([queue.mean_length() for queue in queues], weights=servers)),
            "max": max(queue.longest() for queue in queues),
        },
        "busy": busy,
        "bottleneck": max(busy, key=busy.__getitem__),
    }


def distribution(values: NDArray[np.int64], weights: NDArray[np.integer]) -> dict[str, Any]:
    """Of whole numbers from zero on."""
    count = np.bincount(values, weights)
    total, below = max(1.0, count.sum()), np.cumsum(count)
    present = np.flatnonzero(count).tolist()
    return {
        "mean": float(count @ np.arange(len(count))) / total,
        **{f"p{percent}": int(np.searchsorted(below, percent / 100 * total)) if present else 0 for percent in (50, 95)},
        "max": max(present, default=0),
        "histogram": {str(value): int(count[value]) for value in present},
    }


def _applied_s(timeline: Timeline) -> Times:
    """When the parameters had each push, or it was dropped; shape (steps, tasks)."""
    return timeline.end_s if timeline.applied is None else timeline.applied.applied_s


def _clock_gap(timeline: Timeline, window: Window) -> dict[str, Any]:
    program = timeline.program
    # a step begins with the parameters of the first bucket
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    serves = serves[program.bucket[serves] == program.bucket[serves].min()]
    slowest_s = np.nan_to_num(_applied_s(timeline)[:, serves], nan=np.inf).max(axis=1)
    worked = [next((task for task in lane if program.amount[task] > 0), lane[0]) for lane in _training_lanes(program)]
    begin_s = timeline.start_s[:, worked]
    step, lane = np.nonzero((begin_s >= window.begin_s) & (begin_s < window.end_s))
    gap = step - np.searchsorted(slowest_s, begin_s[step, lane], side="right")
    return distribution(gap, program.ranks.multiplicity[program.rank[worked]][lane])


def _staleness(timeline: Timeline, window: Window) -> tuple[dict[str, Any], float]:
    """Of pushes that were applied; and the share of those that were dropped."""
    program = timeline.program
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    step, serve = np.nonzero(window.has(_applied_s(timeline)[:, serves]))
    requests = program.requests[serves][serve]
    if timeline.applied is None:
        return distribution(np.zeros(len(step), dtype=np.int64), requests), 0.0
    behind = timeline.applied.behind[step, serves[serve]]
    counts = behind != DROPPED
    return distribution(behind[counts], requests[counts]), float(1 - np.average(counts)) if len(counts) else 0.0


def _updates(timeline: Timeline, window: Window) -> float:
    """Updates of the parameters: rounds of a barrier, and else what any worker pushes."""
    return window.steps * (1 if isinstance(timeline.program.gate, Bsp) else len(_pushing(timeline.program)))


class _QueueStatistics:
    """What waits at a server class, and what it serves."""

    def __init__(self, timeline: Timeline, rank: int, window: Window) -> None:
        program = timeline.program
        serves = np.flatnonzero((program.kind == Kind.SERVE) & (program.rank == rank))
        before = program.dependencies.take(serves)
        arrived_s = np.full((len(timeline.end_s), len(serves)), -np.inf)
        np.maximum.at(arrived_s.T, before.keys(), timeline.end_s[:, before.values].T)
        began_s = timeline.start_s[:, serves]
        arrived_s = np.where(np.isfinite(arrived_s), arrived_s, began_s)
        came = np.isfinite(arrived_s)
        self.window = window
        self.busy = timeline.server_busy[rank]
        self.arrived_s, self.began_s = arrived_s[came], began_s[came]
        self.requests, self.service_s = (
            np.broadcast_to(column[serves], came.shape)[came] for column in (program.requests, program.amount)
        )

    def busy_share(self) -> float:
        start_s, end_s = np.array([(one.start_s, one.end_s) for one in self.busy]).reshape(-1, 2).T
        return float(self.window.covers_s(start_s, end_s).sum()) / self.window.length_s

    def mean_length(self) -> float:
        """Of alike requests that come together each waits for those before it."""
        waited_s = self.requests * self.window.covers_s(self.arrived_s, self.began_s)
        waited_s += self.window.has(self.began_s) * self.service_s * self.requests * (self.requests - 1) / 2
        return float(waited_s.sum()) / self.window.length_s

    def longest(self) -> int:
        """Looked at whenever a request comes, and at the beginning: those that have come, less those that are begun."""
        now_s = np.append(self.window.begin_s, self.arrived_s[self.window.has(self.arrived_s)])
        order = np.argsort(self.arrived_s, kind="stable")
        come = np.cumsum(np.append(0, self.requests[order]))[np.searchsorted(self.arrived_s[order], now_s, side="right")]
        order = np.argsort(self.began_s, kind="stable")
        began_s, requests, service_s = self.began_s[order], self.requests[order], self.service_s[order]
        before = np.cumsum(np.append(0, requests))
        current = np.searchsorted(began_s, now_s, side="right") - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            of_current = np.nan_to_num((now_s - began_s[current]) / service_s[current], nan=np.inf) // 1 + 1
        begun = np.where(current < 0, 0, before[current] + np.minimum(requests[current], of_current))
        return int((come - begun).max())


def _links(timeline: Timeline, window: Window) -> dict[str, float]:
    """Share of the time for which the busiest card of a server is busy, and of a worker, at the rate that it has.

    A card is whose it serves most: of a push the way out is the worker's and the way in the server's, of a pull the reverse.
    Where all wait for a barrier its two directions take turns, as far as there is time for that, and count together.
    """
    program = timeline.program
    task, resource, share = _used(timeline, window, program.kind == Kind.TRANSFER)
    stems, _, ways = np.array([name.rpartition(" ") for name in program.resources.names]).reshape(-1, 3).T
    is_end = np.isin(ways, _ENDS)[resource]
    task, resource, share = task[is_end], resource[is_end], share[is_end]
    # on the way out of its source, then into its target
    number = np.arange(len(task)) - np.searchsorted(task, task)
    is_servers = program.ranks.is_server[program.rank[task]] == (number % 2 == 0)
    cards = np.unique(stems, return_inverse=True)[1] if isinstance(program.gate, Bsp) else np.arange(len(stems))
    total, of_servers = (np.bincount(cards[resource], some, len(stems)) for some in (share, share * is_servers))
    mostly, total = of_servers >= total / 2, np.minimum(1.0, total)
    return {
        "server NIC": float(total[mostly].max(initial=0.0)),
        "worker NIC": float(total[~mostly].max(initial=0.0)),
    }


def _lanes(timeline: Timeline, window: Window) -> dict[str, float]:
    """Share of the time in which the busiest worker computes; in which it makes samples, or the busiest of what loads them
    does so."""
    program = timeline.program
    took = window.covers_s(timeline.start_s, timeline.end_s).sum(axis=0) * (program.amount > 0) / window.length_s
    took[(program.lane != MAIN_LANE) | program.ranks.is_server[program.rank]] = 0.0
    is_input, ranks = program.phase == Phase.INPUT, len(program.ranks.names)
    computes, makes = (np.bincount(program.rank, took * which, ranks).max() for which in (~is_input, is_input))
    _, resource, share = _used(timeline, window, is_input & (program.lane != MAIN_LANE))
    loads = np.bincount(resource, share).max(initial=0.0)
    return {"compute": min(1.0, float(computes)), "input": min(1.0, float(max(makes, loads)))}


def _used(timeline: Timeline, window: Window, which: NDArray[np.bool_]) -> tuple[Rows, Rows, Times]:
    """What some tasks use: the task, the resource, and for what share of the time all of that would be busy with it; an entry
    for each use. Of a task that is partly in the window as large a part of its amount counts."""
    program, tasks = timeline.program, np.flatnonzero(which)
    start_s, end_s = timeline.start_s[:, tasks], timeline.end_s[:, tasks]
    part = np.divide(window.covers_s(start_s, end_s), end_s - start_s, out=np.zeros(start_s.shape), where=end_s > start_s)
    done = part.sum(axis=0) * program.amount[tasks] / window.length_s
    index, resource, per_unit = program.routes.used(program.route[tasks])
    return tasks[index], resource, done[index] * per_unit / program.resources.capacity[resource]
