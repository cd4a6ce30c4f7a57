"""Search: the best configuration for an objective, proved among all: every valid one is estimated, and those that could be the
best are replayed, in the order of what they take at least, until no other could be."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulator.accounting import accounted, tokens_per_sample
from simulator.engine import replay
from simulator.errors import FieldError, InputError
from simulator.estimate import Configurations, every, memory_bytes, step_times
from simulator.objectives import Objective
from simulator.planner.space import space
from simulator.predict import timed
from simulator.run import Run
from simulator.scenario import Scenario

Times = NDArray[np.float64]
# Replays take a tenth of a second to some seconds each: what is left after so many is told as not proved.
_MOST_REPLAYS: Final = 300


@dataclass(frozen=True)
class Choice:
    """A configuration that was replayed. row: its number among the configurations. value: of the objective, less is better.
    memory_bytes: of the fullest rank."""

    row: int
    scenario: Scenario
    run: Run
    value: float
    memory_bytes: float


@dataclass(frozen=True)
class Planned:
    """best: of what was replayed, the best first. proved: whether no other configuration that fits beats it by replay. front:
    rows that nothing beats in estimated time and memory. Seconds that estimating and replaying took."""

    objective: Objective
    configurations: Configurations
    expected_s: Times
    memory_bytes: Times
    capacity_bytes: float
    fitting: int
    best: tuple[Choice, ...]
    proved: bool
    replayed: int
    estimate_s: float
    replay_s: float
    front: tuple[int, ...]

    def table(self) -> pd.DataFrame:
        """A row for each of the best, with their configurations."""
        return pd.DataFrame(
            self.configurations.row(choice.row)
            | {
                "step_time_s": choice.run.step_time_s,
                "samples_per_s": choice.run.samples_per_s,
                "memory_bytes": choice.memory_bytes,
            }
            for choice in self.best
        )


def plan(
    scenario: Scenario,
    gpus: int | None = None,
    objective: Objective = "time",
    memory: float | None = None,
    top: int = 10,
    tell: Callable[[str], None] = lambda _: None,
) -> Planned:
    """The best ways to train the scenario's model on so many devices; as many as its strategy has, if None. memory: bytes that
    a rank may hold; what its device has, if None. tell: is called with what is being done.

    Raises FieldError or InputError for what cannot be planned: an objective that the cluster says nothing of, no configuration
    that is valid or fits.
    """
    _check(scenario, objective, top)
    began_s = time.perf_counter()
    found = every(space(scenario, gpus or scenario.strategy.training_ranks))
    if not len(found):
        raise InputError(f"there is no way to train {scenario.total_samples} samples a step on so many ranks; change batch")
    tell(f"estimating {len(found):,} configurations")
    times, held_bytes = step_times(found), memory_bytes(found)
    estimate_s = time.perf_counter() - began_s
    capacity_bytes = memory or scenario.cluster.device.memory_bytes
    fits = held_bytes <= capacity_bytes
    if not fits.any():
        least = float(held_bytes.min()) / 2**30
        raise InputError(f"nothing fits: the leanest of {len(found):,} configurations holds {least:.1f} GiB; give more ranks")
    rows = np.flatnonzero(fits)
    search = _Search(found, objective, held_bytes, top, tell)
    proved = search.run(rows, times.expected_s, times.least_s)
    return Planned(
        objective, found, times.expected_s, held_bytes, capacity_bytes, len(rows), search.best(), proved, search.replayed,
        estimate_s, time.perf_counter() - began_s - estimate_s, _front(rows, times.expected_s, held_bytes),
    )  # fmt: skip


def _check(scenario: Scenario, objective: Objective, top: int) -> None:
    node = scenario.cluster.node
    if objective in ("cost", "tokens-per-dollar") and node.price_USD_per_s is None:
        raise FieldError(("cluster", "node", "price"), f"the cluster names no price, which {objective} follows from; give it")
    if objective == "energy" and node.power_W is None:
        raise FieldError(("cluster", "node", "power"), "the cluster names no power, which energy follows from; give it")
    if objective == "tokens-per-dollar" and tokens_per_sample(scenario.model) is None:
        raise InputError(f"a {scenario.model.kind} reads no tokens; plan for cost")
    if top < 1:
        raise InputError(f"--top {top}: give at least 1")


class _Search:
    """Replays configurations, and keeps the `top` best."""

    def __init__(
        self, found: Configurations, objective: Objective, held_bytes: Times, top: int, tell: Callable[[str], None]
    ) -> None:
        self._found, self._objective, self._held_bytes, self._top, self._tell = found, objective, held_bytes, top, tell
        self._kept: list[tuple[float, int, Choice]] = []
        self.replayed = 0

    def run(self, rows: NDArray[np.int64], expected_s: Times, least_s: Times) -> bool:
        """Whether all were replayed that may be the best. Those that are expected to be among the best come first, so that
        there is something to beat; then all in the order of what they take at least."""
        likely = rows[np.argsort(expected_s[rows], kind="stable")[: self._top]].tolist()
        for row in likely:
            self._replay(row)
        for row in rows[np.argsort(least_s[rows], kind="stable")].tolist():
            if self._least_value(float(least_s[row])) >= self.best()[0].value:
                return True
            if self.replayed == _MOST_REPLAYS:
                return False
            if row not in likely:
                self._replay(row)
        return True

    def _least_value(self, least_s: float) -> float:
        """Of the objective: what a step that takes at least so long comes to at least."""
        if self._objective != "energy":
            return least_s
        node = self._found.space.scenario.cluster.node
        assert node.power_W is not None
        return least_s * (node.idle_power_W if node.idle_power_W is not None else node.power_W)

    def _replay(self, row: int) -> None:
        scenario = self._found.scenario(row)
        self._tell(f"replaying {label(self._found, row)}")
        run = accounted(timed(scenario, simulate=replay.simulate), scenario)
        self.replayed += 1
        choice = Choice(row, scenario, run, self._value(run), float(self._held_bytes[row]))
        heapq.heappush(self._kept, (-choice.value, -row, choice))
        if len(self._kept) > self._top:
            heapq.heappop(self._kept)

    def _value(self, run: Run) -> float:
        """All run on as many nodes, so that what they cost goes by their time."""
        if self._objective != "energy":
            return run.step_time_s
        scenario = self._found.space.scenario
        nodes = -(-run.ranks // scenario.cluster.node.devices)
        assert run.energy_J is not None
        return run.energy_J["per_step"] / (nodes * scenario.cluster.pue)

    def best(self) -> tuple[Choice, ...]:
        return tuple(choice for *_, choice in sorted(self._kept, key=lambda one: (-one[0], -one[1])))


def _front(rows: NDArray[np.int64], expected_s: Times, held_bytes: Times) -> tuple[int, ...]:
    """Rows than which no other is both faster and leaner, the fastest first."""
    order = rows[np.lexsort((held_bytes[rows], expected_s[rows]))]
    leanest = np.minimum.accumulate(held_bytes[order])
    better = np.append(True, held_bytes[order][1:] < leanest[:-1])
    return tuple(order[better].tolist())


def label(found: Configurations, row: int) -> str:
    """'8 tensor × 8 stages × 16 workers, interleaved_1f1b over 3 chunks, …' of a configuration."""
    one = found.row(row)
    degrees = " × ".join(f"{one[name]} {name}" for name in ("tensor", "context", "stages", "workers") if one[name] > 1)
    return f"{degrees or '1 rank'}, {one['microbatches']} × {one['samples']} samples, {one['schedule']}, zero {one['zero']}"
