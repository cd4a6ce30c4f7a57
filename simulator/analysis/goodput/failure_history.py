"""Monte Carlo simulation of a job's failures, repairs, planned stops and training in between, for many samples at once.

Failures do not depend on when checkpoints are taken, so that one history serves for every checkpoint interval. An
iteration advances each sample: through training to the next interruption, or from an interruption towards training. Times
between failures are exponential, hence memoryless: the time to the next failure may be drawn again after any other event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# causes of downtime
Cause = Literal["saving", "detection", "restart", "waiting", "planned"]


class FailureKinds(NamedTuple):
    """Several kinds of failures. per_s: failures per second. shares: relative frequency of each kind. lost: nodes lost with
    each."""

    per_s: float
    shares: Floats
    lost: Ints


class FailureMix(NamedTuple):
    """All failures. node: of one training node. other: those whose rate does not depend on the number of nodes."""

    node: FailureKinds
    other: FailureKinds


class NodeSupply(NamedTuple):
    """Replacements of lost nodes. spares: spare nodes; None where one is always available. repair_s: repair time of a node."""

    spares: int | None
    repair_s: float


@dataclass(frozen=True)
class FailureHistory:
    """The history of `samples` jobs of `end_s` seconds each, and the shares of their time by use and loss for any checkpoint
    interval, arrays of shape (samples,).

    A piece is a period of training without interruption: its sample, length, speed (1 with all workers), and whether its
    unsaved work is lost because a failure ended it; each of shape (pieces,). down_s: seconds by cause, shape (samples,).
    failures, stops, growths: number of failures, planned stops, and restarts with more workers, shape (samples,).
    """

    times: InterruptionTimes
    end_s: float
    samples: int
    sample: Ints
    length_s: Floats
    speed: Floats
    lost: NDArray[np.bool_]
    down_s: Mapping[Cause, Floats]
    failures: Ints
    stops: Ints
    growths: Ints

    def part(self, pieces: int) -> FailureHistory:
        """The history of the first samples only, with about `pieces` pieces."""
        samples = max(1, min(self.samples, self.samples * pieces // len(self.sample)))
        of = self.sample < samples
        return replace(
            self,
            samples=samples,
            sample=self.sample[of],
            length_s=self.length_s[of],
            speed=self.speed[of],
            lost=self.lost[of],
            down_s={cause: seconds[:samples] for cause, seconds in self.down_s.items()},
            failures=self.failures[:samples],
            stops=self.stops[:samples],
            growths=self.growths[:samples],
        )

    def useful(self, interval_s: float) -> Floats:
        """The effective training time ratio: the time that all workers would need for the work that is kept, over all time."""
        work_s, _ = self._pieces(interval_s)
        return self._sum(work_s * self.speed)

    def parts(self, interval_s: float) -> dict[str, Floats]:
        """Shares of all parts of the time, which add up to 1."""
        work_s, saving_s = self._pieces(interval_s)
        down = {cause: seconds / self.end_s for cause, seconds in self.down_s.items()}
        return {
            "useful": self._sum(work_s * self.speed),
            "checkpoints": self._sum(saving_s) + down["saving"],
            "lost work": self._sum(self.length_s - work_s - saving_s),
            "detection": down["detection"],
            "restart": down["restart"],
            "waiting for nodes": down["waiting"],
            "fewer workers": self._sum(work_s * (1 - self.speed)),
            "planned stops": down["planned"],
        }

    def _sum(self, pieces_s: Floats) -> Floats:
        shares: Floats = np.bincount(self.sample, pieces_s, self.samples) / self.end_s
        return shares

    def _pieces(self, interval_s: float) -> tuple[Floats, Floats]:
        """Seconds of kept work, and seconds spent on saving, of each piece; both of shape (pieces,).

        A piece starts at a valid checkpoint. The next checkpoint starts after `interval_s` of training, and so on each period.
        """
        times = self.times
        period_s = times.period_s(interval_s)
        beyond_s = self.length_s - interval_s
        begun = np.maximum(0.0, np.floor(beyond_s / period_s) + 1)
        # since the start of the last checkpoint
        since_s = np.where(begun > 0, beyond_s - (begun - 1) * period_s, 0.0)
        written = np.maximum(0.0, begun - (since_s < times.stall_s + times.writing_s))
        last_s = np.minimum(since_s, times.stall_s)
        last_s += times.slowdown * np.clip(since_s - times.stall_s, 0.0, times.writing_s)
        all_s = np.maximum(0.0, begun - 1) * times.cost_s + last_s
        saving_s = np.where(self.lost, written * times.cost_s, all_s)
        work_s = np.where(self.lost, written * interval_s, self.length_s - all_s)
        return work_s, saving_s


class _Repairs:
    """Repairs of each sample: when they end, infinite in free places, and their nodes; both of shape (places, samples)."""

    def __init__(self, samples: int) -> None:
        self._end_s = np.full((1, samples), np.inf)
        self._nodes = np.zeros((1, samples), dtype=np.int64)

    def send(self, at: Ints, end_s: Floats, nodes: Ints) -> None:
        """Adds `nodes` nodes, which return at `end_s`, to each sample in `at`."""
        some = nodes > 0
        at, end_s, nodes = at[some], end_s[some], nodes[some]
        if np.isfinite(self._end_s[:, at]).all(axis=0).any():
            self._end_s = np.concatenate([self._end_s, np.full_like(self._end_s, np.inf)])
            self._nodes = np.concatenate([self._nodes, np.zeros_like(self._nodes)])
        free = np.isinf(self._end_s[:, at]).argmax(axis=0)
        self._end_s[free, at], self._nodes[free, at] = end_s, nodes

    def next_s(self, at: Ints) -> Floats:
        """Time of the next return in each sample; infinite where no node is in repair."""
        soonest_s: Floats = self._end_s[:, at].min(axis=0)
        return soonest_s

    def returned(self, at: Ints, now_s: Floats) -> Ints:
        """Removes the nodes of each sample that have returned by now, and returns their number."""
        ended = self._end_s[:, at] <= now_s
        nodes: Ints = np.where(ended, self._nodes[:, at], 0).sum(axis=0)
        self._end_s[:, at] = np.where(ended, np.inf, self._end_s[:, at])
        return nodes


class FailureSimulation:
    """Simulation of `samples` jobs of `end_s` seconds, reproducible for a seed.

    saved: whether training ends at `end_s` with its state saved; otherwise work since the last checkpoint is lost.

    The state of all samples is in arrays of shape (samples,); indices `at` select samples. now_s: simulated time. good: working
    nodes, spares included. nodes, workers: those that train. broken: nodes lost since training stopped.
    """

    def __init__(
        self,
        times: InterruptionTimes,
        chances: FailureMix,
        supply: NodeSupply,
        sizes: ElasticSizes,
        end_s: float,
        samples: int,
        seed: int = 0,
        saved: bool = True,
    ) -> None:
        self.times, self.chances, self.supply, self.sizes = times, chances, supply, sizes
        self.end_s, self.random, self.saved = end_s, np.random.default_rng(seed), saved
        self.now_s = np.zeros(samples)
        self.good = np.full(samples, sizes.nodes + (supply.spares or 0))
        self.workers = np.full(samples, sizes.scenario.strategy.workers)
        self.nodes = np.full(samples, sizes.nodes)
        self.speed = np.ones(samples)
        self.broken = np.zeros(samples, dtype=np.int64)
        self.repairs = _Repairs(samples)
        self.trained_s = np.zeros(samples)
        self.down_s: dict[Cause, Floats] = {cause: np.zeros(samples) for cause in get_args(Cause)}
        self.failures, self.stops, self.growths = np.zeros((3, samples), dtype=np.int64)
        self.pieces: list[tuple[Ints, Floats, Floats, NDArray[np.bool_]]] = []

    def run(self) -> FailureHistory:
        """Simulates all samples."""
        training, failed, ready = np.arange(len(self.now_s)), *np.zeros((2, 0), dtype=np.int64)
        while training.size or failed.size or ready.size:
            goes_on, fell, stopped, grown = self._train(training)
            noticed, again = self._unless_failing(failed, "detection", self.times.detection_s)
            staffed = self._staff(np.concatenate([noticed, ready]))
            back, fell_again = self._unless_failing(staffed, "restart", self.times.restart_s)
            training = np.concatenate([goes_on, back])
            failed, ready = np.concatenate([fell, again, fell_again]), self._stop(stopped, grown)
        sample, length_s, speed, lost = (np.concatenate(column) for column in zip(*self.pieces, strict=True))
        return FailureHistory(
            times=self.times,
            end_s=self.end_s,
            samples=len(self.now_s),
            sample=sample,
            length_s=length_s,
            speed=speed,
            lost=lost,
            down_s=self.down_s,
            failures=self.failures,
            stops=self.stops,
            growths=self.growths,
        )

    def _stop(self, planned: Ints, grown: Ints) -> Ints:
        """Saves the state before a planned stop or a restart with more workers; returns the samples that restart."""
        if not (planned.size or grown.size):
            return planned
        self.stops[planned] += 1
        self.growths[grown] += 1
        saving_s = self.times.stall_s + self.times.writing_s
        planned, grown = (self._spend(at, "saving", saving_s) for at in (planned, grown))
        return np.concatenate([self._spend(planned, "planned", self.times.planned_s), grown])

    def _rate(self, at: Ints) -> Floats:
        """Failures per second of each sample."""
        rate: Floats = self.chances.node.per_s * self.nodes[at] + self.chances.other.per_s
        return rate

    def _train(self, live: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Trains until the next event; returns the samples that continue, fail, stop as planned, and restart with more
        workers."""
        failing_s = self.random.exponential(1 / self._rate(live))
        planned = self.times.planned_per_s
        stopping_s = self.random.exponential(1 / planned, len(live)) if planned else np.full(len(live), np.inf)
        # with all workers a returning node is no event; a node may have returned during a restart
        soon_s = np.maximum(0.0, self.repairs.next_s(live) - self.now_s[live])
        returning_s = np.where(self.nodes[live] < self.sizes.nodes, soon_s, np.inf)
        left_s = self.end_s - self.now_s[live]
        ahead_s = np.stack([failing_s, stopping_s, returning_s, left_s])
        first = ahead_s.argmin(axis=0)
        took_s = ahead_s.min(axis=0)
        self.trained_s[live] += took_s
        self.now_s[live] = np.where(first == 3, self.end_s, self.now_s[live] + took_s)
        returned = live[first == 2]
        self.good[returned] += self.repairs.returned(returned, self.now_s[returned])
        grows = self.sizes.workers(self.good[returned]) > self.workers[returned]
        failed, stopped, grown = live[first == 0], live[first == 1], returned[grows]
        self._fail(failed)
        self._record(failed, lost=True)
        self._record(np.concatenate([stopped, grown]), lost=False)
        self._record(live[first == 3], lost=not self.saved)
        return returned[~grows], failed, stopped, grown

    def _record(self, at: Ints, lost: bool) -> None:
        if not at.size:
            return
        self.pieces.append((at, self.trained_s[at], self.speed[at], np.full(len(at), lost)))
        self.trained_s[at] = 0.0

    def _fail(self, at: Ints) -> None:
        """Draws the kind of each sample's failure, and counts the nodes lost with it."""
        if not at.size:
            return
        self.failures[at] += 1
        in_node = self.random.random(len(at)) < self.chances.node.per_s * self.nodes[at] / self._rate(at)
        drawn = self.random.random(len(at))
        of_node, of_other = (
            kinds.lost[np.searchsorted(np.cumsum(kinds.shares)[:-1], drawn, side="right")] for kinds in self.chances
        )
        lost = np.where(in_node, of_node, of_other)
        self.broken[at] = np.minimum(self.broken[at] + lost, self.nodes[at])

    def _spend(self, at: Ints, cause: Cause, seconds: Floats | float) -> Ints:
        """Advances samples by `seconds`, at most to the end, as downtime; returns those before the end."""
        until_s = np.minimum(self.now_s[at] + seconds, self.end_s)
        self.down_s[cause][at] += until_s - self.now_s[at]
        self.now_s[at] = until_s
        return at[until_s < self.end_s]

    def _unless_failing(self, at: Ints, cause: Cause, seconds: float) -> tuple[Ints, Ints]:
        """Advances samples by `seconds` unless a failure occurs first; returns those that succeed and those that fail."""
        if seconds == 0 or not at.size:
            return at, at[:0]
        failing_s = self.random.exponential(1 / self._rate(at))
        fails = failing_s < seconds
        self._spend(at, cause, np.minimum(failing_s, seconds))
        goes_on = self.now_s[at] < self.end_s
        succeeded, failed = at[~fails & goes_on], at[fails & goes_on]
        self._fail(failed)
        return succeeded, failed

    def _staff(self, at: Ints) -> Ints:
        """Sends broken nodes to repair and replaces them, or waits for nodes; returns the samples that have enough nodes."""
        if self.supply.spares is None:
            self.broken[at] = 0
            return at
        self.good[at] += self.repairs.returned(at, self.now_s[at]) - self.broken[at]
        self.repairs.send(at, self.now_s[at] + self.supply.repair_s, self.broken[at])
        self.broken[at] = 0
        while (short := at[self.sizes.workers(self.good[at]) == 0]).size:
            waiting = self._spend(short, "waiting", self.repairs.next_s(short) - self.now_s[short])
            self.good[waiting] += self.repairs.returned(waiting, self.now_s[waiting])
            at = at[self.now_s[at] < self.end_s]
        self.workers[at] = self.sizes.workers(self.good[at])
        for workers in np.unique(self.workers[at]):
            same_size = at[self.workers[at] == workers]
            self.nodes[same_size] = self.sizes.nodes_of(int(workers))
            self.speed[same_size] = self.sizes.speed(int(workers))
        return at
