"""Settings without a scenario and an event-by-event simulation, for tests of goodput."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.failure_history import FailureKinds, FailureMix, NodeSupply
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes

# eight failures a day, ten minutes each to notice and to restart
USUAL: Final = InterruptionTimes(
    failures_per_s=8 / 86400,
    planned_per_s=0.0,
    detection_s=600.0,
    restart_s=600.0,
    planned_s=0.0,
    stall_s=30.0,
    writing_s=0.0,
    slowdown=0.0,
)


def times(**changed: Any) -> InterruptionTimes:
    return replace(USUAL, **changed)


@dataclass
class PlainSizes:
    """Replaces `ElasticSizes`: `nodes` workers of one node each, with throughput proportional to their number. If it shrinks
    and is `paired`, the number of workers is even."""

    nodes: int = 10
    shrinks: bool = False
    paired: bool = False
    scenario: Any = field(init=False)

    def __post_init__(self) -> None:
        class Named:
            pass

        self.scenario = Named()
        self.scenario.strategy = Named()
        self.scenario.strategy.workers = self.nodes

    def workers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        there = np.minimum(nodes, self.nodes)
        there -= there % 2 if self.paired else 0
        return there if self.shrinks else np.where(there == self.nodes, there, 0)

    def nodes_of(self, workers: int) -> int:
        return workers

    def speed(self, workers: int) -> float:
        return workers / self.nodes


def of_nodes(rates: InterruptionTimes, nodes: int = 10) -> FailureMix:
    """All failures are of nodes, each of which is lost."""
    one, none = np.ones(1), np.zeros(1, dtype=np.int64)
    each_loses_one = FailureKinds(rates.failures_per_s / nodes, one, np.ones(1, dtype=np.int64))
    return FailureMix(each_loses_one, FailureKinds(0.0, one, none))


def of_the_job(rates: InterruptionTimes) -> FailureMix:
    """No failure takes a node."""
    one, none = np.ones(1), np.zeros(1, dtype=np.int64)
    return FailureMix(FailureKinds(0.0, one, none), FailureKinds(rates.failures_per_s, one, none))


def followed(rates: InterruptionTimes, supply: NodeSupply, nodes: int, interval_s: float, end_s: float, seed: int) -> float:
    """The effective ratio of a job with spare nodes, simulated checkpoint by checkpoint and failure by failure."""
    chance = random.Random(seed)
    now_s, useful_s, spares = 0.0, 0.0, supply.spares
    away_s: list[float] = []
    while now_s < end_s:
        failing_s = chance.expovariate(rates.failures_per_s)
        failed_s = now_s + failing_s
        useful_s += _trained_s(rates, interval_s, min(failing_s, end_s - now_s), kept=failed_s >= end_s)
        now_s, broken = failed_s, 1
        while now_s < end_s:
            if (strikes_s := chance.expovariate(rates.failures_per_s)) < rates.detection_s:
                now_s, broken = now_s + strikes_s, broken + 1
                continue
            now_s += rates.detection_s
            if spares is not None:
                away_s += [now_s + supply.repair_s] * broken
                # nodes in repair beyond the number of spares are missing
                while sum(back_s > now_s for back_s in away_s) > spares:
                    now_s = min(back_s for back_s in away_s if back_s > now_s)
            broken = 0
            if (strikes_s := chance.expovariate(rates.failures_per_s)) >= rates.restart_s:
                now_s += rates.restart_s
                break
            now_s, broken = now_s + strikes_s, 1
    return useful_s / end_s


def _trained_s(rates: InterruptionTimes, interval_s: float, length_s: float, kept: bool) -> float:
    """Useful time of a piece, by going through it."""
    now_s, done_s, valid_s, writing_until_s = 0.0, 0.0, 0.0, -1.0
    snapshot_s, next_s = 0.0, interval_s
    while True:
        writes = now_s < writing_until_s
        speed = 1 - rates.slowdown if writes else 1.0
        until_s = min(now_s + (next_s - done_s) / speed, writing_until_s if writes else float("inf"), length_s)
        done_s += (until_s - now_s) * speed
        now_s = until_s
        if now_s >= length_s:
            break
        if writes and now_s >= writing_until_s:
            valid_s = snapshot_s
            writing_until_s = -1.0
        if done_s >= next_s - 1e-9:
            now_s += rates.stall_s
            if now_s >= length_s:
                break
            snapshot_s, next_s = done_s, done_s + interval_s
            writing_until_s = now_s + rates.writing_s if rates.writing_s else -1.0
            valid_s = valid_s if rates.writing_s else snapshot_s
    return done_s if kept else valid_s
