"""Free running: the Run of workers that go each on its own, from what they and their servers noted.

What of it counts, and by which measures, is as `simulator.asynchrony` has it of predicted runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.asynchrony import Times, Window, distribution, window_of_rounds, window_of_steps
from simulator.gate import DROPPED, SYNCHRONOUS, Barrier
from simulator.intervals import Stretches
from simulator.run import Phase, Run, Spans, Stream, divided, from_spans
from simulator.scenario import Scenario
from simulator.strategy import ParameterServer
from validator.steps import warmup_steps

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`
_TIMES = ("arrival_s", "start_s", "end_s")


def goes_alone(scenario: Scenario) -> bool:
    """Whether its workers do not all take the same steps at the same time."""
    strategy = scenario.strategy
    return isinstance(strategy, ParameterServer) and strategy.gate != SYNCHRONOUS


def run_of(rows: Rows, ends: Rows, servers: NDArray[np.bool_], scenario: Scenario, /, **fields: Any) -> Run:
    """ends: of the workers' steps. The first quarter of those after the warm-up does not count, nor what comes once the first
    worker has ended its last. Steps of spans are each rank's own, counted from 1, with those of the warm-up."""
    strategy, warmup = scenario.strategy, warmup_steps(scenario)
    assert isinstance(strategy, ParameterServer)
    zero_s = ends["end_s"][ends["step"] == 0].min()
    for name in _TIMES:
        rows[name] -= zero_s
    done_s = np.full((ends["step"].max() + 1, strategy.workers), np.nan)
    counted = ends[ends["step"] >= 0]
    done_s[counted["step"], counted["rank"]] = counted["end_s"] - zero_s
    pushes, samples = Pushes.of(rows, servers), scenario.total_samples
    if isinstance(strategy.gate, Barrier):
        window = window_of_rounds(pushes.rounds_s[warmup - 1 :], done_s)
        samples = samples * (strategy.workers - strategy.backups) // strategy.workers
    else:
        window = window_of_steps(done_s, np.ones(strategy.workers, dtype=np.int64))
    # from the whole run: what a worker waited for may have begun before the window did
    summary = _summary(rows, pushes, servers, window, warmup)
    crews = 1 if isinstance(strategy.gate, Barrier) else len(np.unique(pushes.worker))
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
    return replace(divided(run, window.steps), servers=summary)


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
    """What `simulator.asynchrony.summary` tells, as far as it can be measured: of a network card when something was moving."""
    serves = (rows["phase"] == Phase.OPTIMIZER) & servers[rows["rank"]]
    busy = _shares(rows, serves, rows["rank"], window)[servers]
    waiting = np.array([_queue(pushes, rows[serves], server, window) for server in np.flatnonzero(servers).tolist()])
    moves = servers[rows["rank"]] & (rows["peer"] >= 0) & (rows["stream"] == Stream.COMMUNICATION)
    passes = ~servers[rows["rank"]] & np.isin(rows["phase"], (Phase.FORWARD, Phase.BACKWARD))
    most = {
        "server CPU": busy.max(),
        "server NIC": _shares(rows, moves, rows["rank"], window)[servers].max(),
        "worker NIC": _shares(rows, moves, np.maximum(rows["peer"], 0), window)[~servers].max(),
        "compute": _shares(rows, passes, rows["rank"], window)[~servers].max(),
        "input": _shares(rows, rows["phase"] == Phase.INPUT, rows["rank"], window)[~servers].max(),
    }
    told = {name: float(share) for name, share in most.items()}
    inside, counts = window.has(pushes.applied_s), pushes.counts
    return {
        "clock_gap": distribution(*_ones(_clock_gaps(rows, pushes, servers, window, warmup))),
        "version_staleness": distribution(*_ones(pushes.behind[inside & counts])),
        "dropped": float(1 - counts[inside].mean()) if inside.any() else 0.0,
        "utilisation": {"mean": float(busy.mean()), "max": float(busy.max())},
        "queue_length": {"mean": float(waiting[:, 0].mean()), "max": int(waiting[:, 1].max())},
        "busy": told,
        "bottleneck": max(told, key=told.__getitem__),
    }


def _ones(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return values, np.ones_like(values)


def _shares(rows: Rows, which: NDArray[np.bool_], owner: NDArray[np.integer], window: Window) -> Times:
    """For what share of the window something of each rank's was going on."""
    some, ranks = rows[which], owner[which].astype(np.int64)
    covered = Stretches(ranks, some["start_s"], some["end_s"]).union()
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
