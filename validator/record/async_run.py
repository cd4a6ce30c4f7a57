"""Free running: the Run of workers that go each on its own, from what they and their servers noted.

What of it counts, and by which measures, is as `scaleproof.simulator.run.staleness` has it of predicted runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Link
from scaleproof.simulator.common.spans import Stretches
from scaleproof.simulator.program.consistency import DROPPED, SYNCHRONOUS, Bsp
from scaleproof.simulator.run.run import Phase, Run, Spans, Stream, divided, from_spans
from scaleproof.simulator.run.staleness import Times, Window, distribution, window_of_rounds, window_of_steps
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.simulator.strategy.parameter_server.ranks import placed
from scaleproof.validator.record.step_time import slope_interval_s
from scaleproof.validator.train.steps import warmup_steps

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`
_TIMES = ("arrival_s", "start_s", "end_s")


def goes_alone(scenario: Scenario) -> bool:
    """Whether its workers do not all take the same steps at the same time."""
    strategy = scenario.strategy
    return isinstance(strategy, ParameterServer) and strategy.gate != SYNCHRONOUS


def run_of(rows: Rows, ends: Rows, servers: NDArray[np.bool_], scenario: Scenario, /, **fields: Any) -> Run:
    """ends: of the workers' steps. The first quarter of those after the warm-up does not count, nor what comes once the first
    worker has ended its last. Steps of spans are each rank's own, counted from 1, with those of the warm-up; step times are of
    rounds: of a barrier's, or of as many steps, by whomever, as there are workers."""
    strategy, warmup = scenario.strategy, warmup_steps(scenario)
    assert isinstance(strategy, ParameterServer)
    zero_s = ends["end_s"][ends["step"] == 0].min()
    for name in _TIMES:
        rows[name] -= zero_s
    done_s = np.full((ends["step"].max() + 1, strategy.workers), np.nan)
    counted = ends[ends["step"] >= 0]
    done_s[counted["step"], counted["rank"]] = counted["end_s"] - zero_s
    pushes, samples = Pushes.of(rows, servers), scenario.total_samples
    if isinstance(strategy.gate, Bsp):
        rounds_s = pushes.rounds_s[warmup - 1 :]
        window = window_of_rounds(rounds_s, done_s)
        samples = samples * (strategy.workers - strategy.backups) // strategy.workers
    else:
        window = window_of_steps(done_s, np.ones(strategy.workers, dtype=np.int64))
        ends_s = np.sort(done_s[np.isfinite(done_s)])
        rounds_s = ends_s[ends_s >= window.begin_s][:: strategy.workers]
    rounds_s = rounds_s[(rounds_s >= window.begin_s) & (rounds_s <= window.end_s)]
    # from the whole run: what a worker waited for may have begun before the window did
    summary = _summary(rows, pushes, servers, window, warmup)
    summary = summary | _busiest(summary["busy"] | _cards(rows, servers, scenario, window))
    crews = 1 if isinstance(strategy.gate, Bsp) else len(np.unique(pushes.worker))
    summary["updates_per_s"] = crews * window.steps / window.length_s
    rows["step"] += warmup
    for name in _TIMES:
        rows[name] = np.clip(rows[name], window.begin_s, window.end_s)
    rows = rows[rows["end_s"] > rows["arrival_s"]]
    run = from_spans(
        Spans.of({name: rows[name] for name in Spans.__dataclass_fields__}),
        np.array([window.begin_s, window.end_s]),
        servers=servers,
        samples=samples,
        **fields,
    )
    run = divided(run, window.steps)
    interval_s = _around(run.step_time_s, slope_interval_s(rounds_s))
    return replace(run, servers=summary, step_times_s=tuple(np.diff(rounds_s).tolist()), step_time_interval_s=interval_s)


def _around(step_time_s: float, interval_s: tuple[float, float] | None) -> tuple[float, float] | None:
    """An interval that the step time is in: rounds' slope is a median, and the step time is a mean."""
    return interval_s and (min(interval_s[0], step_time_s), max(interval_s[1], step_time_s))


class _Key(NamedTuple):
    """A push: which of a worker's, from 0, of which bucket, at which server."""

    server: int
    bucket: int
    worker: int
    number: int


@dataclass(frozen=True)
class Pushes:
    """Columns of equal length, one row per push that was answered, as `_Key` has it.

    received_s: when it was there; began_s: when it was served; applied_s: when the parameters had it; of one that was dropped
    these are when it was answered. behind: updates by others between its worker's last answer and its own update; DROPPED where
    it was. rounds_s: when each update was over on the last server for the last bucket.
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
        """From what servers noted of them: that they came, were added, and were answered; and of updates, which name nobody."""
        own = rows[servers[rows["rank"]] & (rows["match"] >= 0)]
        is_update = (own["phase"] == Phase.OPTIMIZER) & (own["peer"] < 0)
        updates_s = {
            queue: np.sort(own["end_s"][is_update & (own["rank"] == queue[0]) & (own["group"] == queue[1])])
            for queue in set(zip(own["rank"].tolist(), own["group"].tolist(), strict=True))
        }
        came, added, answered = (
            _by_key(own[(own["phase"] == phase) & ~is_update]) for phase in (Phase.RECEIVE, Phase.OPTIMIZER, Phase.SEND)
        )
        columns: list[tuple[float, ...]] = []
        for key in answered:
            sent_s, of_queue = answered[key]["start_s"], updates_s[key.server, key.bucket]
            before = answered.get(key._replace(number=key.number - 1))
            known = 0 if before is None else int(np.searchsorted(of_queue, before["start_s"], side="right"))
            began_s = applied_s = sent_s
            behind = DROPPED
            if key in added:
                began_s = added[key]["start_s"]
                update = int(np.searchsorted(of_queue, added[key]["end_s"]))
                applied_s, behind = of_queue[update], update - known
            columns.append((*key, came[key]["end_s"], began_s, applied_s, behind))
        values = np.array(columns, dtype=float).reshape(-1, 8).T
        rounds = min((len(one) for one in updates_s.values()), default=0)
        rounds_s = np.max([one[:rounds] for one in updates_s.values()], axis=0)
        whole = (values[0], values[1], values[2], values[3], values[7])
        server, bucket, worker, number, behind_of = (column.astype(np.int64) for column in whole)
        return cls(server, bucket, worker, number, values[4], values[5], values[6], behind_of, rounds_s)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Which were not dropped."""
        result: NDArray[np.bool_] = self.behind != DROPPED
        return result


def _by_key(rows: Rows) -> dict[_Key, Any]:
    columns = (rows[name].tolist() for name in ("rank", "group", "peer", "match"))
    return {_Key(*key): row for key, row in zip(zip(*columns, strict=True), rows, strict=True)}


def _summary(rows: Rows, pushes: Pushes, servers: NDArray[np.bool_], window: Window, warmup: int) -> dict[str, Any]:
    """What `scaleproof.simulator.run.staleness.summary` tells, but for network cards, as far as it can be measured."""
    serves = (rows["phase"] == Phase.OPTIMIZER) & servers[rows["rank"]]
    busy = _shares(rows, serves, window)[servers]
    waiting = np.array([_queue(pushes, rows[serves], server, window) for server in np.flatnonzero(servers).tolist()])
    passes = ~servers[rows["rank"]] & np.isin(rows["phase"], (Phase.FORWARD, Phase.BACKWARD))
    most = {
        "server CPU": busy.max(),
        "compute": _shares(rows, passes, window)[~servers].max(),
        "input": _shares(rows, rows["phase"] == Phase.INPUT, window)[~servers].max(),
    }
    inside, counts = window.has(pushes.applied_s), pushes.counts
    return {
        "clock_gap": distribution(*_ones(_clock_gaps(rows, pushes, servers, window, warmup))),
        "version_staleness": distribution(*_ones(pushes.behind[inside & counts])),
        "dropped": float(1 - counts[inside].mean()) if inside.any() else 0.0,
        "utilisation": {"mean": float(busy.mean()), "max": float(busy.max())},
        "queue_length": {"mean": float(waiting[:, 0].mean()), "max": int(waiting[:, 1].max())},
        "busy": {name: float(share) for name, share in most.items()},
    }


def _busiest(busy: Mapping[str, float]) -> dict[str, Any]:
    return {"busy": busy, "bottleneck": max(busy, key=busy.__getitem__)}


def _cards(rows: Rows, servers: NDArray[np.bool_], scenario: Scenario, window: Window) -> dict[str, float]:
    """Share of what it could carry in the window that the busiest card of a server carries, and of a worker.

    Bytes are as servers noted them; cards, whose they are, and their directions are as `simulator.run.staleness` has them.
    """
    strategy, cluster, workers = scenario.strategy, scenario.cluster, scenario.strategy.workers
    assert isinstance(strategy, ParameterServer)
    needed = strategy.nodes_needed(cluster)
    dedicated = needed > -(-workers // cluster.node.devices)
    nodes = placed(workers, strategy.servers, cluster.node.devices, dedicated)
    node_of = {rank: node for node, ranks in nodes.items() for rank in (*ranks.workers, *ranks.servers)}
    moved = rows[servers[rows["rank"]] & (rows["peer"] >= 0) & (rows["stream"] == Stream.COMMUNICATION)]
    took_s = moved["end_s"] - moved["start_s"]
    covered_s = window.covers_s(moved["start_s"], moved["end_s"])
    part = np.divide(covered_s, took_s, out=window.has(moved["end_s"]).astype(float), where=took_s > 0)
    # of each card the share of the window that it is busy for, by the bytes of servers and of workers
    shares: dict[tuple[Any, ...], NDArray[np.float64]] = defaultdict(lambda: np.zeros(2))
    for row, size_bytes in zip(moved, part * moved["size_bytes"], strict=True):
        server, worker, pushed = int(row["rank"]), int(row["peer"]), row["phase"] == Phase.RECEIVE
        inside = node_of[server] == node_of[worker]
        for rank, enters in ((server, pushed), (worker, not pushed)):
            way = "both" if isinstance(strategy.gate, Bsp) else enters
            rate_Bps = _rate_Bps(cluster.node.link if inside else cluster.network, rank if inside else node_of[rank])
            card = (inside, rank if inside else node_of[rank], way)
            shares[card][int(rank == worker)] += size_bytes / rate_Bps / window.length_s
    busy = {"server NIC": 0.0, "worker NIC": 0.0}
    for of_server, of_worker in shares.values():
        name = "server NIC" if of_server >= of_worker else "worker NIC"
        busy[name] = max(busy[name], min(1.0, float(of_server + of_worker)))
    return busy


def _rate_Bps(link: Link | None, endpoint: int) -> float:
    """Of an endpoint's own link."""
    assert link is not None, "messages take links that the cluster has"
    return next((unlike.bandwidth_Bps for unlike in link.unlike if endpoint in unlike.at), link.bandwidth_Bps)


def _ones(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return values, np.ones_like(values)


def _shares(rows: Rows, which: NDArray[np.bool_], window: Window) -> Times:
    """For what share of the window something of each rank's was going on."""
    some = rows[which]
    covered = Stretches(some["rank"].astype(np.int64), some["start_s"], some["end_s"]).union()
    covered_s = np.bincount(covered.owner, window.covers_s(covered.start_s, covered.end_s), int(rows["rank"].max()) + 1)
    return covered_s / window.length_s


def _queue(pushes: Pushes, serves: Rows, server: int, window: Window) -> tuple[float, int]:
    """How many pushes wait at a server: mean over time, and the most when another has come."""
    own = pushes.server == server
    came_s, began_s = pushes.received_s[own], pushes.began_s[own]
    mean = float(window.covers_s(came_s, began_s).sum()) / window.length_s
    order = np.argsort(came_s)
    come = np.arange(1, len(order) + 1)
    begun = np.searchsorted(np.sort(began_s), came_s[order], side="right")
    # who comes to an idle server does not wait for others
    busy = serves[serves["rank"] == server]
    ongoing = np.searchsorted(np.sort(busy["start_s"]), came_s[order], side="right")
    ongoing -= np.searchsorted(np.sort(busy["end_s"]), came_s[order], side="right")
    inside = window.has(came_s[order])
    return mean, int((come - begun - (ongoing == 0))[inside].max(initial=0))


def _clock_gaps(rows: Rows, pushes: Pushes, servers: NDArray[np.bool_], window: Window, warmup: int) -> NDArray[np.int64]:
    """When a worker begins a step, how many more pushes it has made than the parameters have of whom they have the fewest; a
    step begins with the first bucket's."""
    first = pushes.bucket == pushes.bucket.min()
    slowest_s = np.full(int(pushes.number.max()) + 1, -np.inf)
    np.maximum.at(slowest_s, pushes.number[first], pushes.applied_s[first])
    # of the last ones some may be missing, where the run broke off
    everybody = np.bincount(pushes.number[first]) == np.bincount(pushes.number[first]).max()
    slowest_s = np.maximum.accumulate(np.where(everybody, slowest_s, np.inf))
    main = rows[~servers[rows["rank"]] & (rows["stream"] == Stream.MAIN)]
    # a rank notes one thing after the other
    _, begins = np.unique(np.stack([main["rank"], main["step"]]), axis=1, return_index=True)
    begin_s, made = main["arrival_s"][begins], main["step"][begins] + warmup - 1
    inside = (begin_s >= window.begin_s) & (begin_s < window.end_s)
    gaps: NDArray[np.int64] = (made - np.searchsorted(slowest_s, begin_s, side="right"))[inside]
    return gaps
