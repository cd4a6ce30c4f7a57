"""Number of workers with which training continues when nodes are missing, and their throughput."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario

# approximate number of sizes whose speed is predicted; the others are interpolated
_PREDICTED: Final = 16


class ElasticSizes:
    """Number of workers and their speed, by the number of working nodes. Nodes that a smaller job does not need are idle.

    With `batch.per_worker`, steps of fewer workers have fewer samples; with `batch.total`, they have as many, and the number
    of workers has to divide them.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = scenario.strategy.nodes_needed(scenario.cluster)
        reliability = scenario.reliability
        assert reliability is not None
        self._least = reliability.least_workers
        self.shrinks = reliability.shortage == "shrink" or bool(reliability.events)
        if self.shrinks:
            self._check()
        self._fits = self.shrinks and memory(scenario).fits
        self.workers_on = functools.cache(self._workers_on)
        self.nodes_of = functools.cache(self._nodes_of)
        self._samples_per_s = functools.cache(self._timed)

    def _check(self) -> None:
        strategy = self.scenario.strategy
        if "workers" not in type(strategy).model_fields:
            message = f"{strategy.kind} cannot continue with fewer workers; give wait"
            raise FieldError(("reliability", "shortage"), message)
        if self._least > strategy.workers:
            message = f"the job has {strategy.workers} workers; give fewer"
            raise FieldError(("reliability", "least_workers"), message)

    def workers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of workers that train on each number of working nodes; 0 where training waits."""
        numbers, place = np.unique(np.minimum(nodes, self.nodes), return_inverse=True)
        return np.array([self.workers_on(number) for number in numbers.tolist()], dtype=np.int64)[place]

    def _workers_on(self, nodes: int) -> int:
        """Number of workers that train on a number of working nodes; 0 where training waits."""
        full = self.scenario.strategy.workers
        if nodes >= self.nodes:
            return full
        if not self.shrinks:
            return 0
        return next((workers for workers in range(full - 1, self._least - 1, -1) if 0 < self.nodes_of(workers) <= nodes), 0)

    def _nodes_of(self, workers: int) -> int:
        """Number of nodes for `workers` workers; 0 where the scenario cannot be trained with this number of workers."""
        if workers == self.scenario.strategy.workers:
            return self.nodes
        smaller = self.of(workers)
        if smaller is None or (self._fits and not memory(smaller).fits):
            return 0
        return smaller.strategy.nodes_needed(smaller.cluster)

    def speed(self, workers: int) -> float:
        """Throughput with `workers` workers over that with all workers."""
        full = self.scenario.strategy.workers
        spacing = max(1, -(-(full - self._least) // _PREDICTED))
        above = full - (full - workers) // spacing * spacing
        below = max(self._least, above - spacing)
        if workers == above or not self.nodes_of(above) or not self.nodes_of(below):
            return self._samples_per_s(workers) / self.samples_per_s
        share = (workers - below) / (above - below)
        return ((1 - share) * self._samples_per_s(below) + share * self._samples_per_s(above)) / self.samples_per_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second with all workers."""
        return self._samples_per_s(self.scenario.strategy.workers)

    def _timed(self, workers: int) -> float:
        smaller = self.of(workers)
        assert smaller is not None
        return timed(smaller).samples_per_s

    def of(self, workers: int) -> Scenario | None:
        """The scenario with `workers` workers; None where it cannot be trained with this number."""
        scenario = self.scenario
        if workers == scenario.strategy.workers:
            return scenario
        if scenario.batch.total and scenario.batch.total % workers:
            return None
        try:
            return scenario.rebuilt(strategy=scenario.strategy.model_copy(update={"workers": workers}))
        except FieldError:
            return None
