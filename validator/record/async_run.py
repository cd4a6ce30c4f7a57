"""The Run of asynchronous training, from the spans of workers and their parameter servers.

Workers have no common steps: they record the loss of each of theirs, and servers the order in which pushes were applied, from
which the loss of each update follows. Window and measures of the Run are those that `scaleproof.simulator.prediction.staleness`
defines for predicted runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Link
from scaleproof.simulator.common.parameter_server import DROPPED, SYNCHRONOUS, Bsp
from scaleproof.simulator.common.spans import SPAN_COLUMNS, Phase, Spans, Stream, TimeIntervals
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.prediction.staleness import Times, Window, distribution, window_of_rounds, window_of_steps
from scaleproof.simulator.run.breakdown import from_spans
from scaleproof.simulator.run.records import QueueLength, ServerStatistics, Utilisation
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.ranks import ranks_on_nodes
from scaleproof.validator.record.step_time import including, slope_interval_s
from scaleproof.validator.record.steps import warmup_steps

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`
# For each worker of a pusher, by the number of its step: the part of its samples in a mean over all workers.
Losses = Sequence[Mapping[str, float]]
_TIMES = ("arrival_s", "start_s", "end_s")


def is_asynchronous(scenario: Scenario) -> bool:
    """Whether the scenario's workers do not all take the same steps at the same time."""
    strategy = scenario.strategy
    return isinstance(strategy, ParameterServer) and strategy.consistency != SYNCHRONOUS


def asynchronous_run(rows: Rows, ends: Rows, servers: NDArray[np.bool_], scenario: Scenario, /, **fields: Any) -> Run:
    """The Run of spans `rows`. ends: rows of the ends of workers' steps. servers: which ranks are servers, shape (ranks,).

    The window leaves out the first quarter of the steps after the warm-up, and all after the first worker's last step; if the
    work is in units, it is the whole run after the warm-up. Steps of spans are each rank's own, counted from 1 and with the
    warm-up. Step times are those of rounds: of bulk synchronous rounds, else of as many steps of any worker as there are
    workers.
    """
    strategy, warmup = scenario.strategy, warmup_steps(scenario)
    assert isinstance(strategy, ParameterServer)
    first_s = ends["end_s"][ends["step"] == 0]
    # units of work begin once all workers have ended the warm-up
    zero_s = first_s.max() if strategy.units else first_s.min()
    for name in _TIMES:
        rows[name] -= zero_s
    done_s = np.full((ends["step"].max() + 1, strategy.workers), np.nan)
    counted = ends[ends["step"] >= 0]
    done_s[counted["step"], counted["rank"]] = counted["end_s"] - zero_s
    pushes, samples = Pushes.of(rows, servers), scenario.total_samples
    if isinstance(strategy.consistency, Bsp):
        rounds_s = pushes.rounds_s[warmup - 1 :]
        window = window_of_rounds(rounds_s, done_s)
        samples = samples * (strategy.workers - strategy.backups) // strategy.workers
    else:
        if strategy.units:
            window = Window(0.0, float(np.nanmax(done_s)), np.isfinite(done_s[1:]).sum() / strategy.workers)
            rows = np.concatenate([rows, _idle_at_the_end(ends, zero_s, window)])
        else:
            window = window_of_steps(done_s, np.ones(strategy.workers, dtype=np.int64))
        ends_s = np.sort(done_s[np.isfinite(done_s)])
        rounds_s = ends_s[ends_s >= window.begin_s][:: strategy.workers]
    rounds_s = rounds_s[(rounds_s >= window.begin_s) & (rounds_s <= window.end_s)]
    # from the whole run: what a worker waited for may have begun before the window
    updates_per_step = 1 if isinstance(strategy.consistency, Bsp) else len(np.unique(pushes.worker))
    updates_per_s = updates_per_step * window.steps / window.length_s
    cards = _cards(rows, servers, scenario, window)
    statistics = _statistics(
        rows, pushes, servers, window, _clock_gaps(rows, pushes, servers, window, warmup), cards, updates_per_s
    )
    rows["step"] += warmup
    for name in _TIMES:
        rows[name] = np.clip(rows[name], window.begin_s, window.end_s)
    rows = rows[rows["end_s"] > rows["arrival_s"]]
    spans = Spans.of({name: rows[name] for name in SPAN_COLUMNS if name in (rows.dtype.names or ())})
    times = from_spans(spans, np.array([window.begin_s, window.end_s]), servers=servers).divided(window.steps)
    interval_s = including(times.step_time_s, slope_interval_s(rounds_s))
    times = replace(times, step_times_s=tuple(np.diff(rounds_s).tolist()), step_time_interval_s=interval_s)
    return Run(**vars(times), samples=samples, servers=statistics, **fields)


def _idle_at_the_end(ends: Rows, zero_s: float, window: Window) -> Rows:
    """Rows of workers that have no unit left and wait for the others at the end of the run."""
    in_order = ends[np.lexsort((ends["step"], ends["rank"]))]
    idle = in_order[np.append(np.diff(in_order["rank"]) > 0, True)]
    idle["phase"] = Phase.SYNCHRONISE
    idle["arrival_s"] = idle["end_s"] - zero_s
    idle["start_s"] = idle["end_s"] = window.end_s
    waits: Rows = idle[idle["arrival_s"] < window.end_s]
    return waits


class _Key(NamedTuple):
    """Key of a push: server, bucket, worker, and its number among the worker's pushes, from 0."""

    server: int
    bucket: int
    worker: int
    number: int


@dataclass(frozen=True)
class Pushes:
    """Columns with one row per push that has a reply, shape (pushes,); server … number as in `_Key`.

    received_s: time of the arrival. began_s: begin of the service. applied_s: end of the update. Both are the time of the reply
    for dropped pushes. behind: updates by others between the worker's previous reply and the push's own update; DROPPED for
    dropped pushes. rounds_s: end of each update on the last server for the last bucket, shape (updates,).
    """

    server: NDArray[np.int64]
    bucket: NDArray[np.int64]
    worker: NDArray[np.int64]
    number: NDArray[np.int64]
    received_s: Times
    began_s: Times
    applied_s: Times
    behind: NDArray[np.int64]
    rounds_s: Times

    @classmethod
    def of(cls, rows: Rows, servers: NDArray[np.bool_]) -> Pushes:
        """From servers' spans: receives, additions and replies name their worker as peer; updates name none.

        Updates are counted in the order in which servers recorded their spans, since the clock may stand still for a moment.
        """
        own = rows[servers[rows["rank"]] & (rows["match"] >= 0)]
        is_update = (own["phase"] == Phase.OPTIMIZER) & (own["peer"] < 0)
        updates = {
            queue: np.flatnonzero(is_update & (own["rank"] == queue[0]) & (own["group"] == queue[1]))
            for queue in set(zip(own["rank"].tolist(), own["group"].tolist(), strict=True))
        }
        arrivals, added, replies = (
            _by_key(own, (own["phase"] == phase) & ~is_update) for phase in (Phase.RECEIVE, Phase.OPTIMIZER, Phase.SEND)
        )
        columns: list[tuple[float, ...]] = []
        for key, reply in replies.items():
            of_queue = updates[key.server, key.bucket]
            began_s = applied_s = own["start_s"][reply]
            behind = DROPPED
            if key in added:
                began_s = own["start_s"][added[key]]
                known = np.searchsorted(of_queue, replies.get(key._replace(number=key.number - 1), -1))
                update = np.searchsorted(of_queue, added[key])
                applied_s, behind = own["end_s"][of_queue[update]], int(update - known)
            columns.append((*key, own["end_s"][arrivals[key]], began_s, applied_s, behind))
        values = np.array(columns, dtype=float).reshape(-1, 8).T
        rounds = min((len(one) for one in updates.values()), default=0)
        rounds_s = np.max([own["end_s"][one[:rounds]] for one in updates.values()], axis=0)
        whole = (values[0], values[1], values[2], values[3], values[7])
        server, bucket, worker, number, behind_of = (column.astype(np.int64) for column in whole)
        return cls(server, bucket, worker, number, values[4], values[5], values[6], behind_of, rounds_s)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Whether each push was applied, not dropped, shape (pushes,)."""
        result: NDArray[np.bool_] = self.behind != DROPPED
        return result


def _by_key(rows: Rows, selected: NDArray[np.bool_]) -> dict[_Key, int]:
    """Numbers of selected rows by the push that they are for."""
    numbers = np.flatnonzero(selected).tolist()
    columns = (rows[name][numbers].tolist() for name in ("rank", "group", "peer", "match"))
    return {_Key(*key): number for key, number in zip(zip(*columns, strict=True), numbers, strict=True)}


def _statistics(
    rows: Rows,
    pushes: Pushes,
    servers: NDArray[np.bool_],
    window: Window,
    gaps: NDArray[np.int64],
    cards: Mapping[str, float],
    updates_per_s: float,
) -> ServerStatistics:
    """Server statistics. gaps: of clocks, as by `_clock_gaps`. cards: utilisation of network cards."""
    serves = (rows["phase"] == Phase.OPTIMIZER) & servers[rows["rank"]]
    serving = _shares(rows, serves, window)[servers]
    waiting = np.array([_queue(pushes, rows[serves], server, window) for server in np.flatnonzero(servers).tolist()])
    passes = ~servers[rows["rank"]] & np.isin(rows["phase"], (Phase.FORWARD, Phase.BACKWARD))
    busy = {
        "server CPU": float(serving.max()),
        "compute": float(_shares(rows, passes, window)[~servers].max()),
        "input": float(_shares(rows, rows["phase"] == Phase.INPUT, window)[~servers].max()),
        **cards,
    }
    inside, counts = window.has(pushes.applied_s), pushes.counts
    return ServerStatistics(
        clock_gap=distribution(*_ones(gaps)),
        version_staleness=distribution(*_ones(pushes.behind[inside & counts])),
        dropped=float(1 - counts[inside].mean()) if inside.any() else 0.0,
        updates_per_s=updates_per_s,
        utilisation=Utilisation(float(serving.mean()), float(serving.max())),
        queue_length=QueueLength(float(waiting[:, 0].mean()), int(waiting[:, 1].max())),
        busy=busy,
        bottleneck=max(busy, key=busy.__getitem__),
    )


def _cards(rows: Rows, servers: NDArray[np.bool_], scenario: Scenario, window: Window) -> dict[str, float]:
    """Utilisation in the window of the busiest network card of a server, and of a worker.

    Bytes are from servers' spans; cards and their directions are as in `simulator.run.staleness`.
    """
    strategy, cluster, workers = scenario.strategy, scenario.cluster, scenario.strategy.workers
    assert isinstance(strategy, ParameterServer)
    needed = strategy.nodes_needed(cluster)
    dedicated = needed > -(-workers // cluster.node.devices)
    nodes = ranks_on_nodes(workers, strategy.servers, cluster.node.devices, dedicated)
    node_of = {rank: node for node, ranks in nodes.items() for rank in (*ranks.workers, *ranks.servers)}
    moved = rows[servers[rows["rank"]] & (rows["peer"] >= 0) & (rows["stream"] == Stream.COMMUNICATION)]
    took_s = moved["end_s"] - moved["start_s"]
    covered_s = window.covers_s(moved["start_s"], moved["end_s"])
    part = np.divide(covered_s, took_s, out=window.has(moved["end_s"]).astype(float), where=took_s > 0)
    # by card, the share of the window in which it is busy with servers' bytes and with workers' bytes
    shares: dict[tuple[Any, ...], NDArray[np.float64]] = defaultdict(lambda: np.zeros(2))
    for row, size_bytes in zip(moved, part * moved["size_bytes"], strict=True):
        server, worker, pushed = int(row["rank"]), int(row["peer"]), row["phase"] == Phase.RECEIVE
        inside = node_of[server] == node_of[worker]
        for rank, enters in ((server, pushed), (worker, not pushed)):
            way = "both" if isinstance(strategy.consistency, Bsp) else enters
            rate_Bps = _rate_Bps(cluster.node.link if inside else cluster.network, rank if inside else node_of[rank])
            card = (inside, rank if inside else node_of[rank], way)
            shares[card][int(rank == worker)] += size_bytes / rate_Bps / window.length_s
    busy = {"server NIC": 0.0, "worker NIC": 0.0}
    for of_server, of_worker in shares.values():
        name = "server NIC" if of_server >= of_worker else "worker NIC"
        busy[name] = max(busy[name], min(1.0, float(of_server + of_worker)))
    return busy


def _rate_Bps(link: Link | None, endpoint: int) -> float:
    """Bandwidth of an endpoint's own link in bytes/s."""
    assert link is not None, "messages use links of the cluster"
    return next((exception.bandwidth_Bps for exception in link.exceptions if endpoint in exception.at), link.bandwidth_Bps)


def _ones(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return values, np.ones_like(values)


def _shares(rows: Rows, which: NDArray[np.bool_], window: Window) -> Times:
    """Share of the window that selected spans of each rank cover, shape (ranks,)."""
    some = rows[which]
    covered = TimeIntervals(some["rank"].astype(np.int64), some["start_s"], some["end_s"]).union()
    covered_s = np.bincount(covered.owner, window.covers_s(covered.start_s, covered.end_s), int(rows["rank"].max()) + 1)
    return covered_s / window.length_s


def _queue(pushes: Pushes, serves: Rows, server: int, window: Window) -> tuple[float, int]:
    """Number of pushes that wait at a server: mean over time, and the maximum at arrivals."""
    own = pushes.server == server
    received_s, began_s = pushes.received_s[own], pushes.began_s[own]
    mean = float(window.covers_s(received_s, began_s).sum()) / window.length_s
    order = np.argsort(received_s)
    arrived = np.arange(1, len(order) + 1)
    begun = np.searchsorted(np.sort(began_s), received_s[order], side="right")
    # pushes that arrive at an idle server do not wait
    busy = serves[serves["rank"] == server]
    ongoing = np.searchsorted(np.sort(busy["start_s"]), received_s[order], side="right")
    ongoing -= np.searchsorted(np.sort(busy["end_s"]), received_s[order], side="right")
    inside = window.has(received_s[order])
    return mean, int((arrived - begun - (ongoing == 0))[inside].max(initial=0))


def _clock_gaps(rows: Rows, pushes: Pushes, servers: NDArray[np.bool_], window: Window, warmup: int) -> NDArray[np.int64]:
    """At each begin of a worker's step, its number of pushes minus the number applied of the slowest worker.

    Pushes of the first bucket count.
    """
    first = pushes.bucket == pushes.bucket.min()
    slowest_s = np.full(int(pushes.number.max()) + 1, -np.inf)
    np.maximum.at(slowest_s, pushes.number[first], pushes.applied_s[first])
    # some of the last pushes may be missing if the run was interrupted
    complete = np.bincount(pushes.number[first]) == np.bincount(pushes.number[first]).max()
    slowest_s = np.maximum.accumulate(np.where(complete, slowest_s, np.inf))
    main = rows[~servers[rows["rank"]] & (rows["stream"] == Stream.MAIN)]
    # a rank's spans are in the order of time
    _, begins = np.unique(np.stack([main["rank"], main["step"]]), axis=1, return_index=True)
    begin_s, made = main["arrival_s"][begins], main["step"][begins] + warmup - 1
    inside = (begin_s >= window.begin_s) & (begin_s < window.end_s)
    # the slowest worker has made no more pushes than any, though its last may be applied at the same reading of the clock
    applied = np.minimum(np.searchsorted(slowest_s, begin_s, side="right"), made)
    gaps: NDArray[np.int64] = (made - applied)[inside]
    return gaps


def by_update(scenario: Scenario, outcomes: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Mean loss over the samples of each update, at the parameters with which their gradients were computed.

    Updates after the warm-up of the first server's first bucket count. Empty where all workers take the same steps. outcomes:
    the `scaleproof.validator.strategy.train.RankOutcome` of all ranks.
    """
    strategy = scenario.strategy
    if not is_asynchronous(scenario):
        return ()
    assert isinstance(strategy, ParameterServer)
    groups = strategy.pushers(scenario.cluster.node.devices)
    pushers = [[outcomes[worker]["losses"] for worker in workers] for workers in groups]
    logs: list[list[tuple[str, int, int]]] = [outcome["notes"]["log"] for outcome in outcomes[strategy.workers :]]
    log = next(filter(None, logs), [])
    first_bucket = [(action, pusher) for action, bucket, pusher in log if bucket == log[0][1]]
    return tuple(_means(first_bucket, pushers, warmup_steps(scenario)))


def _means(log: Sequence[tuple[str, int]], pushers: Sequence[Losses], warmup: int) -> Iterator[float]:
    """Mean loss of each update in a log. log: a server's actions for one bucket, and the pusher of each."""
    workers, pushed = sum(map(len, pushers)), [0] * len(pushers)
    since_last: list[float] = []
    for action, pusher in log:
        if action in ("update", "skip"):
            if since_last:
                yield sum(since_last) / len(since_last)
            since_last = []
        elif action in ("add", "drop"):
            pushed[pusher] += 1
            step = str(pushed[pusher] - warmup)
            if action == "add":
                since_last += [losses[step] * workers for losses in pushers[pusher] if step in losses]
