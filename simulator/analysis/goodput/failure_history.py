"""History: what happens to a job by chance, for many samples at once: failures, repairs, stops, and when it trains between.

Chance does not depend on when checkpoints are taken, so that one history tells of every interval. An iteration takes each
sample a step further: through training to the next interruption, or back to training unless something fails on the way. As
times between failures are exponential, the rest of a time to the next failure is distributed as a whole one, and may be drawn
anew whenever something else has happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.analysis.goodput.renewal import Times
from scaleproof.simulator.analysis.goodput.repairs import Repairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# what takes time beside training, in the order of a history's rows
DOWN: Final = ("saving", "detection", "restart", "waiting", "planned")
_SAVING, _DETECTION, _RESTART, _WAITING, _PLANNED = range(len(DOWN))


class Chances(NamedTuple):
    """Failures a second of each node that trains, and of what does not depend on their number. share, lost: of the kinds of
    failures, how often each is meant, and how many nodes are lost with it; first of nodes, then of the rest."""

    node_per_s: float
    other_per_s: float
    node_share: Floats
    other_share: Floats
    node_lost: Ints
    other_lost: Ints


class Supply(NamedTuple):
    """spares: nodes beside those that train, None where there is always one. repair_s: of a node that was lost."""

    spares: int | None
    repair_s: float


@dataclass(frozen=True)
class History:
    """Of `samples` jobs, each `end_s` long. Pieces are times of training without interruption, one row for each: of which
    sample, how long, at which speed (1 with all workers), and whether work is lost, as a failure ended it.

    down_s: seconds of each sample in each of DOWN. failures, stops, growths: how many of each there were.
    """

    end_s: float
    samples: int
    sample: Ints
    length_s: Floats
    speed: Floats
    lost: NDArray[np.bool_]
    down_s: Floats
    failures: Ints
    stops: Ints
    growths: Ints

    def part(self, pieces: int) -> History:
        """Of the first samples alone, which have about so many pieces."""
        samples = max(1, min(self.samples, self.samples * pieces // len(self.sample)))
        of = self.sample < samples
        return replace(
            self,
            samples=samples,
            sample=self.sample[of],
            length_s=self.length_s[of],
            speed=self.speed[of],
            lost=self.lost[of],
            down_s=self.down_s[:, :samples],
            failures=self.failures[:samples],
            stops=self.stops[:samples],
            growths=self.growths[:samples],
        )


def simulate(
    times: Times,
    chances: Chances,
    supply: Supply,
    sizes: ElasticSizes,
    end_s: float,
    samples: int,
    seed: int = 0,
    saved: bool = True,
) -> History:
    """So many jobs of `end_s` seconds, the same for the same seed. saved: whether training ends then and is saved, so that
    nothing is lost; else it is lost what no checkpoint has by then."""
    random = np.random.default_rng(seed)
    return _Simulation(times, chances, supply, sizes, end_s, samples, random, saved).run()


class _Simulation:
    """now_s: of each sample. good: nodes that work, spare ones among them; nodes, workers: of those that train."""

    def __init__(
        self,
        times: Times,
        chances: Chances,
        supply: Supply,
        sizes: ElasticSizes,
        end_s: float,
        samples: int,
        random: np.random.Generator,
        saved: bool,
    ) -> None:
        self.times, self.chances, self.supply, self.sizes = times, chances, supply, sizes
        self.end_s, self.random, self.saved = end_s, random, saved
        self.now_s = np.zeros(samples)
        self.good = np.full(samples, sizes.nodes + (supply.spares or 0))
        self.workers = np.full(samples, sizes.scenario.strategy.workers)
        self.nodes = np.full(samples, sizes.nodes)
        self.speed = np.ones(samples)
        self.broken = np.zeros(samples, dtype=np.int64)
        self.repairs = Repairs(samples)
        # of what is drawn between 0 and 1, where one kind ends and the next begins
        self.kinds = [
            (np.cumsum(share)[:-1], lost)
            for share, lost in ((chances.node_share, chances.node_lost), (chances.other_share, chances.other_lost))
        ]
        self.trained_s = np.zeros(samples)
        self.down_s = np.zeros((len(DOWN), samples))
        self.failures, self.stops, self.growths = np.zeros((3, samples), dtype=np.int64)
        self.pieces: list[tuple[Ints, Floats, Floats, NDArray[np.bool_]]] = []

    def run(self) -> History:
        training, failed, ready = np.arange(len(self.now_s)), *np.zeros((2, 0), dtype=np.int64)
        while training.size or failed.size or ready.size:
            goes_on, fell, stopped, grown = self._train(training)
            noticed, again = self._unless_failing(failed, _DETECTION, self.times.detection_s)
            staffed = self._staff(np.concatenate([noticed, ready]))
            back, fell_again = self._unless_failing(staffed, _RESTART, self.times.restart_s)
            training = np.concatenate([goes_on, back])
            failed, ready = np.concatenate([fell, again, fell_again]), self._stop(stopped, grown)
        sample, length_s, speed, lost = (np.concatenate(column) for column in zip(*self.pieces, strict=True))
        return History(
            self.end_s, len(self.now_s), sample, length_s, speed, lost, self.down_s, self.failures, self.stops, self.growths
        )  # fmt: skip

    def _stop(self, planned: Ints, grown: Ints) -> Ints:
        """Saves training, as nothing has failed; which samples are to restart."""
        if not (planned.size or grown.size):
            return planned
        self.stops[planned] += 1
        self.growths[grown] += 1
        saving_s = self.times.stall_s + self.times.writing_s
        planned, grown = (self._pass(at, _SAVING, saving_s) for at in (planned, grown))
        return np.concatenate([self._pass(planned, _PLANNED, self.times.planned_s), grown])

    def _rate(self, at: Ints) -> Floats:
        """Failures a second."""
        rate: Floats = self.chances.node_per_s * self.nodes[at] + self.chances.other_per_s
        return rate

    def _train(self, live: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """All until what comes next; which samples go on as before then, fail, stop as planned, and grow."""
        failing_s = self.random.exponential(1 / self._rate(live))
        planned = self.times.planned_per_s
        stopping_s = self.random.exponential(1 / planned, len(live)) if planned else np.full(len(live), np.inf)
        # with all workers it does not matter when a node is back; it may have been while others restarted
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
        """Something fails, by chance, and takes nodes with it."""
        if not at.size:
            return
        self.failures[at] += 1
        in_node = self.random.random(len(at)) < self.chances.node_per_s * self.nodes[at] / self._rate(at)
        drawn = self.random.random(len(at))
        lost = np.where(in_node, *(kinds[np.searchsorted(bounds, drawn, side="right")] for bounds, kinds in self.kinds))
        self.broken[at] = np.minimum(self.broken[at] + lost, self.nodes[at])

    def _pass(self, at: Ints, part: int, seconds: Floats | float) -> Ints:
        """Lets time pass, to the end at most; which samples are not there yet."""
        until_s = np.minimum(self.now_s[at] + seconds, self.end_s)
        self.down_s[part, at] += until_s - self.now_s[at]
        self.now_s[at] = until_s
        return at[until_s < self.end_s]

    def _unless_failing(self, at: Ints, part: int, seconds: float) -> tuple[Ints, Ints]:
        """Lets time pass, in which a failure may strike; which samples got through, and which failed."""
        if seconds == 0 or not at.size:
            return at, at[:0]
        failing_s = self.random.exponential(1 / self._rate(at))
        strikes = failing_s < seconds
        self._pass(at, part, np.minimum(failing_s, seconds))
        goes_on = self.now_s[at] < self.end_s
        through, failed = at[~strikes & goes_on], at[strikes & goes_on]
        self._fail(failed)
        return through, failed

    def _staff(self, at: Ints) -> Ints:
        """Sends broken nodes to repair, replaces them, and waits for nodes where there are too few; which samples have them."""
        if self.supply.spares is None:
            self.broken[at] = 0
            return at
        self.good[at] += self.repairs.returned(at, self.now_s[at]) - self.broken[at]
        self.repairs.send(at, self.now_s[at] + self.supply.repair_s, self.broken[at])
        self.broken[at] = 0
        while (short := at[self.sizes.workers(self.good[at]) == 0]).size:
            waiting = self._pass(short, _WAITING, self.repairs.next_s(short) - self.now_s[short])
            self.good[waiting] += self.repairs.returned(waiting, self.now_s[waiting])
            at = at[self.now_s[at] < self.end_s]
        self.workers[at] = self.sizes.workers(self.good[at])
        for workers in np.unique(self.workers[at]):
            alike = at[self.workers[at] == workers]
            self.nodes[alike] = self.sizes.nodes_of(int(workers))
            self.speed[alike] = self.sizes.speed(int(workers))
        return at
