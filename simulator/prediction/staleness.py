"""Statistics of parameter servers and asynchronous workers: steps, clocks, staleness, queues and utilisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.parameter_server import DROPPED, Bsp
from scaleproof.simulator.common.spans import SPAN_COLUMNS, Phase, Spans, Stream
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program, Rows
from scaleproof.simulator.run.breakdown import StepBreakdown, from_spans
from scaleproof.simulator.run.records import Distribution, QueueLength, ServerStatistics, Utilisation

Times = NDArray[np.float64]

# Share of the steps that is discarded at the beginning, until asynchronous workers no longer step together.
WARM_UP: Final = 0.25
_ROUNDING: Final = 1e-9
# Last words of the names of resources at an endpoint of a transfer.
_ENDS: Final = ("in", "out", "both")


class Window(NamedTuple):
    """The part of a run that is evaluated: from begin to end the ranks made `steps` steps each, on average.

    With backup workers, only steps that ended with an update count.
    """

    begin_s: float
    end_s: float
    steps: float

    @property
    def length_s(self) -> float:
        """Duration in seconds."""
        return self.end_s - self.begin_s

    def has(self, times_s: Times) -> NDArray[np.bool_]:
        """Whether each time is in the window, its begin excluded."""
        result: NDArray[np.bool_] = (times_s > self.begin_s) & (times_s <= self.end_s)
        return result

    def covers_s(self, start_s: Times, end_s: Times) -> Times:
        """Seconds of each interval that are in the window; zero for intervals without times."""
        covered_s = np.minimum(end_s, self.end_s) - np.maximum(start_s, self.begin_s)
        return np.where(covered_s > 0, covered_s, 0.0)


def counted_samples(program: Program, samples: int) -> int:
    """Samples per step of asynchronous ranks without those that backup workers drop. samples: per step, including those."""
    if not isinstance(program.consistency, Bsp):
        return samples
    pushes = len(_pushing(program))
    return samples * (pushes - program.consistency.backups) // pushes


def asynchronous_times(timelines: Sequence[Timeline]) -> StepBreakdown:
    """Times of a step of asynchronous ranks, which is as many steps of single ranks as there are ranks.

    The step time is the duration over the number of steps, after the first quarter of them (of all, if the work is in units),
    in the mean over timelines of one program. Their spans follow one another. Steps of spans are counted per rank, from 1.
    """
    program, windows = timelines[0].program, [window_of(timeline) for timeline in timelines]
    blocks, end_s, steps = list[Spans](), windows[0].begin_s, 0
    for timeline, window in zip(timelines, windows, strict=True):
        own = [_cut(_with_step_before(timeline).spans(), window)]
        if program.units:
            own.append(_idle_at_the_end(timeline, window))
        blocks += [_moved(block, end_s - window.begin_s, steps) for block in own]
        end_s += window.length_s
        steps += len(timeline.start_s)
    times = from_spans(
        Spans.of({name: np.concatenate([getattr(block, name) for block in blocks]) for name in SPAN_COLUMNS}),
        np.array([windows[0].begin_s, end_s]),
        servers=program.ranks.is_server,
        multiplicity=program.ranks.multiplicity,
    )
    return times.divided(sum(window.steps for window in windows))


def asynchronous_step_s(timelines: Sequence[Timeline]) -> float:
    """Seconds of a step of asynchronous ranks, as `asynchronous_times`."""
    windows = [window_of(timeline) for timeline in timelines]
    return sum(window.length_s for window in windows) / sum(window.steps for window in windows)


def _moved(spans: Spans, seconds: float, steps: int) -> Spans:
    """The spans later by some seconds and steps."""
    moved = {name: getattr(spans, name) + seconds for name in ("arrival_s", "start_s", "end_s")}
    return replace(spans, **moved, step=spans.step + steps)


def _idle_at_the_end(timeline: Timeline, window: Window) -> Spans:
    """Spans of ranks that have no unit left and wait for the others at the end of the run."""
    ends_s = _ends_s(timeline)
    last_s = np.nan_to_num(ends_s, nan=0.0).max(axis=0)
    rank = timeline.program.rank[[tasks[-1] for tasks in _training_tasks(timeline.program)]]
    step = np.isfinite(ends_s).sum(axis=0)
    columns = {
        "rank": rank, "step": step, "stream": Stream.MAIN, "phase": Phase.SYNCHRONISE, "stage": -1, "microbatch": -1,
        "arrival_s": last_s, "start_s": window.end_s, "end_s": window.end_s, "size_bytes": 0.0,
    }  # fmt: skip
    return Spans.of({name: np.broadcast_to(column, len(rank)) for name, column in columns.items()}).where(last_s < window.end_s)


def _with_step_before(timeline: Timeline) -> Timeline:
    """The timeline with an empty step before the first, whose tasks end when their ranks begin, so that waiting in the first
    step has a beginning."""
    began_s = timeline.program.ranks.late_s[timeline.program.rank][None]
    start_s, end_s = (np.concatenate([began_s, times]) for times in (timeline.start_s, timeline.end_s))
    busy = {rank: [replace(work, step=work.step + 1) for work in works] for rank, works in timeline.server_busy.items()}
    return replace(timeline, start_s=start_s, end_s=end_s, server_busy=busy)


def _cut(spans: Spans, window: Window) -> Spans:
    """The parts of spans in the window."""
    cut = {name: np.clip(getattr(spans, name), window.begin_s, window.end_s) for name in ("arrival_s", "start_s", "end_s")}
    return replace(spans, **cut).where(cut["end_s"] > cut["arrival_s"])


def window_of(timeline: Timeline) -> Window:
    """The part of a run that is evaluated: all steps but the first of a static program."""
    program = timeline.program
    if program.is_static:
        ends_s = timeline.step_ends_s()
        return Window(float(ends_s[0]), float(ends_s[-1]), len(ends_s) - 1)
    rank = [program.rank[tasks[0]] for tasks in _training_tasks(program)]
    done_s, ranks = _ends_s(timeline), program.ranks.multiplicity[rank]
    if isinstance(program.consistency, Bsp):
        return window_of_rounds(_updates_s(timeline), done_s)
    if program.units:
        ended = np.isfinite(done_s)
        return Window(0.0, float(done_s[ended].max()), float((ended * ranks).sum() / ranks.sum()))
    return window_of_steps(done_s, ranks)


def window_of_rounds(rounds_s: Times, done_s: Times) -> Window:
    """The window of synchronous rounds. rounds_s: end of each round; done_s: see `window_of_steps`."""
    rounds_s = rounds_s[rounds_s <= _stop_s(done_s)]
    first = int(WARM_UP * len(rounds_s))
    return Window(float(rounds_s[first]), float(rounds_s[-1]), len(rounds_s) - 1 - first)


def window_of_steps(done_s: Times, ranks: NDArray[np.integer]) -> Window:
    """The window of asynchronous ranks.

    done_s: end of each step, shape (steps, rank classes), NaN for steps that did not end. ranks: number of ranks of each class.
    """
    ended = np.isfinite(done_s)
    order = np.argsort(done_s[ended], kind="stable")
    taken = np.cumsum(np.broadcast_to(ranks, done_s.shape)[ended][order]) / ranks.sum()
    ends_s = done_s[ended][order]
    stop = np.searchsorted(ends_s, _stop_s(done_s), side="right") - 1
    begin = np.searchsorted(taken, WARM_UP * taken[stop])
    # whole rounds, if there is at least one, since workers that stay in step end their steps together
    rounds = np.floor(taken[stop] - taken[begin] + _ROUNDING) or np.inf
    end = np.searchsorted(taken, min(taken[begin] + rounds, taken[stop]) + _ROUNDING, side="right") - 1
    return Window(float(ends_s[begin]), float(ends_s[end]), float(taken[end] - taken[begin]))


def _stop_s(done_s: Times) -> float:
    """Time at which the first rank has ended its last step, after which not all ranks work."""
    ended = np.isfinite(done_s)
    return float(np.where(ended, done_s, -np.inf).max(axis=0)[ended.any(axis=0)].min())


def _ends_s(timeline: Timeline) -> Times:
    """End of each step of each training rank class in seconds, shape (steps, classes)."""
    return timeline.end_s[:, [tasks[-1] for tasks in _training_tasks(timeline.program)]]


def _pushing(program: Program) -> Rows:
    """The rank classes that push gradients."""
    return np.unique(program.peer[program.kind == Kind.SERVE])


def _training_tasks(program: Program) -> list[list[int]]:
    """The tasks of the main stream of each training rank class."""
    training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
    return [tasks for tasks in program.streams().lists() if training[tasks[0]]]


def _updates_s(timeline: Timeline) -> Times:
    """End of each synchronous round on its last server in seconds, shape (rounds,)."""
    assert timeline.applied is not None
    applied_s, program = timeline.applied.applied_s, timeline.program
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    _, queue = np.unique(np.stack([program.rank[serves], program.bucket[serves]]), axis=1, return_inverse=True)
    counted = timeline.applied.behind[:, serves] != DROPPED
    in_queue = [queue == number for number in range(queue.max() + 1)]
    rounds_s = [np.unique(applied_s[:, serves][:, tasks][counted[:, tasks]]) for tasks in in_queue]
    count = min(map(len, rounds_s))
    latest_s: Times = np.max([queue_s[:count] for queue_s in rounds_s], axis=0)
    return latest_s


def summary(timelines: Sequence[Timeline]) -> ServerStatistics:
    """Statistics of a program's servers in the evaluated windows of its timelines."""
    windows = [window_of(timeline) for timeline in timelines]
    each = [_statistics(timeline, window) for timeline, window in zip(timelines, windows, strict=True)]
    return each[0] if len(each) == 1 else _mean(each, [window.length_s for window in windows])


def _mean(each: Sequence[ServerStatistics], lengths_s: Sequence[float]) -> ServerStatistics:
    """Statistics of several windows of these lengths as of one."""

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=lengths_s))

    def merged(values: Sequence[Distribution]) -> Distribution:
        weights = [(int(value), weight) for one in values for value, weight in one.histogram.items()]
        numbers, counts = np.array(weights, dtype=np.int64).reshape(-1, 2).T
        return distribution(numbers, counts)

    busy = {name: mean([one.busy[name] for one in each]) for name in each[0].busy}
    return ServerStatistics(
        clock_gap=merged([one.clock_gap for one in each]),
        version_staleness=merged([one.version_staleness for one in each]),
        dropped=mean([one.dropped for one in each]),
        updates_per_s=mean([one.updates_per_s for one in each]),
        utilisation=Utilisation(mean([one.utilisation.mean for one in each]), max(one.utilisation.max for one in each)),
        queue_length=QueueLength(mean([one.queue_length.mean for one in each]), max(one.queue_length.max for one in each)),
        busy=busy,
        bottleneck=max(busy, key=busy.__getitem__),
    )


def _statistics(timeline: Timeline, window: Window) -> ServerStatistics:
    program = timeline.program
    queues = [_QueueStatistics(timeline, rank, window) for rank in timeline.server_busy]
    servers = [int(program.ranks.multiplicity[rank]) for rank in timeline.server_busy]
    serving = [queue.busy_share() for queue in queues]
    busy = {"server CPU": max(serving)} | _links(timeline, window) | _workers(timeline, window)
    behind, dropped = _staleness(timeline, window)
    return ServerStatistics(
        clock_gap=_clock_gap(timeline, window),
        version_staleness=behind,
        dropped=dropped,
        updates_per_s=_updates(timeline, window) / window.length_s,
        utilisation=Utilisation(float(np.average(serving, weights=servers)), max(serving)),
        queue_length=QueueLength(
            float(np.average([queue.mean_length() for queue in queues], weights=servers)),
            max(queue.longest() for queue in queues),
        ),
        busy=busy,
        bottleneck=max(busy, key=busy.__getitem__),
    )


def distribution(values: NDArray[np.int64], weights: NDArray[np.integer]) -> Distribution:
    """Mean, percentiles, maximum and histogram of weighted whole numbers from zero on."""
    count = np.bincount(values, weights)
    total, below = max(1.0, count.sum()), np.cumsum(count)
    present = np.flatnonzero(count).tolist()
    p50, p95 = (int(np.searchsorted(below, share * total)) if present else 0 for share in (0.5, 0.95))
    return Distribution(
        mean=float(count @ np.arange(len(count))) / total,
        p50=p50,
        p95=p95,
        max=max(present, default=0),
        histogram={str(value): int(count[value]) for value in present},
    )


def _applied_s(timeline: Timeline) -> Times:
    """Time in seconds at which each push was applied or dropped, shape (steps, tasks)."""
    return timeline.end_s if timeline.applied is None else timeline.applied.applied_s


def _clock_gap(timeline: Timeline, window: Window) -> Distribution:
    program = timeline.program
    # a step needs the parameters of the first bucket to begin
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    serves = serves[program.bucket[serves] == program.bucket[serves].min()]
    slowest_s = np.nan_to_num(_applied_s(timeline)[:, serves], nan=np.inf).max(axis=1)
    first_work = [next((task for task in tasks if program.amount[task] > 0), tasks[0]) for tasks in _training_tasks(program)]
    begin_s = timeline.start_s[:, first_work]
    step, rank = np.nonzero((begin_s >= window.begin_s) & (begin_s < window.end_s))
    gap = step - np.searchsorted(slowest_s, begin_s[step, rank], side="right")
    return distribution(gap, program.ranks.multiplicity[program.rank[first_work]][rank])


def _staleness(timeline: Timeline, window: Window) -> tuple[Distribution, float]:
    """The distribution of the version staleness of applied pushes, and the share of pushes that were dropped."""
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
    """Number of parameter updates in the window: one per round if synchronous, else one per push."""
    return window.steps * (1 if isinstance(timeline.program.consistency, Bsp) else len(_pushing(timeline.program)))


class _QueueStatistics:
    """Waiting requests and busy time of a server class in a window."""

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
        """Share of the window in which the server is busy."""
        start_s, end_s = np.array([(work.start_s, work.end_s) for work in self.busy]).reshape(-1, 2).T
        return float(self.window.covers_s(start_s, end_s).sum()) / self.window.length_s

    def mean_length(self) -> float:
        """Time average of the number of waiting requests; identical requests that arrive together wait for each other."""
        waited_s = self.requests * self.window.covers_s(self.arrived_s, self.began_s)
        waited_s += self.window.has(self.began_s) * self.service_s * self.requests * (self.requests - 1) / 2
        return float(waited_s.sum()) / self.window.length_s

    def longest(self) -> int:
        """Maximum number of waiting requests, those that have arrived minus those that have begun, over all arrival times."""
        now_s = np.append(self.window.begin_s, self.arrived_s[self.window.has(self.arrived_s)])
        order = np.argsort(self.arrived_s, kind="stable")
        arrived = np.cumsum(np.append(0, self.requests[order]))[np.searchsorted(self.arrived_s[order], now_s, side="right")]
        order = np.argsort(self.began_s, kind="stable")
        began_s, requests, service_s = self.began_s[order], self.requests[order], self.service_s[order]
        before = np.cumsum(np.append(0, requests))
        current = np.searchsorted(began_s, now_s, side="right") - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            in_current = np.nan_to_num((now_s - began_s[current]) / service_s[current], nan=np.inf) // 1 + 1
        begun = np.where(current < 0, 0, before[current] + np.minimum(requests[current], in_current))
        return int((arrived - begun).max())


def _links(timeline: Timeline, window: Window) -> dict[str, float]:
    """Utilisation of the busiest network card of servers, and of workers.

    A card belongs to the side that it carries most traffic of: the outgoing side of a push is the worker's and the incoming one
    the server's, and vice versa for a pull. With synchronous updates the two directions of a card alternate, and count
    together.
    """
    program = timeline.program
    task, resource, share = _used(timeline, window, program.kind == Kind.TRANSFER)
    stems, _, directions = np.array([name.rpartition(" ") for name in program.resources.names]).reshape(-1, 3).T
    is_end = np.isin(directions, _ENDS)[resource]
    task, resource, share = task[is_end], resource[is_end], share[is_end]
    # first the output of the source, then the input of the target
    number = np.arange(len(task)) - np.searchsorted(task, task)
    is_servers = program.ranks.is_server[program.rank[task]] == (number % 2 == 0)
    cards = np.unique(stems, return_inverse=True)[1] if isinstance(program.consistency, Bsp) else np.arange(len(stems))
    total, by_servers = (np.bincount(cards[resource], part, len(stems)) for part in (share, share * is_servers))
    is_server_card, total = by_servers >= total / 2, np.minimum(1.0, total)
    return {
        "server NIC": float(total[is_server_card].max(initial=0.0)),
        "worker NIC": float(total[~is_server_card].max(initial=0.0)),
    }


def _workers(timeline: Timeline, window: Window) -> dict[str, float]:
    """Share of the time in which the busiest worker computes, and in which the busiest worker or loader prepares samples."""
    program = timeline.program
    busy = window.covers_s(timeline.start_s, timeline.end_s).sum(axis=0) * (program.amount > 0) / window.length_s
    busy[(program.stream != MAIN_STREAM) | program.ranks.is_server[program.rank]] = 0.0
    is_input, ranks = program.phase == Phase.INPUT, len(program.ranks.names)
    compute, making = (np.bincount(program.rank, busy * selected, ranks).max() for selected in (~is_input, is_input))
    _, resource, share = _used(timeline, window, is_input & (program.stream != MAIN_STREAM))
    loading = np.bincount(resource, share).max(initial=0.0)
    return {"compute": min(1.0, float(compute)), "input": min(1.0, float(max(making, loading)))}


def _used(timeline: Timeline, window: Window, selected: NDArray[np.bool_]) -> tuple[Rows, Rows, Times]:
    """The uses of resources by the selected tasks: task, resource, and the share of the window for which the use would occupy
    the whole resource. Tasks that are partly in the window count partly."""
    program, tasks = timeline.program, np.flatnonzero(selected)
    start_s, end_s = timeline.start_s[:, tasks], timeline.end_s[:, tasks]
    part = np.divide(window.covers_s(start_s, end_s), end_s - start_s, out=np.zeros(start_s.shape), where=end_s > start_s)
    done = part.sum(axis=0) * program.amount[tasks] / window.length_s
    index, resource, per_unit = program.routes.used(program.route[tasks])
    return tasks[index], resource, done[index] * per_unit / program.resources.capacity[resource]
