"""Sizes: with how many workers training goes on when nodes are missing, and how fast that is."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.sensitivity.sensitivity import rebuilt
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario

# about so many speeds are predicted; those between two follow from them
_PREDICTED: Final = 16


class ElasticSizes:
    """By the number of nodes that work. Those that a job with fewer workers does not fill are idle.

    With `batch.per_worker` a step of fewer workers has fewer samples, with `batch.total` as many, which workers must divide.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = scenario.strategy.nodes_needed(scenario.cluster)
        reliability = scenario.reliability
        assert reliability is not None
        self._least = reliability.least_workers
        self.shrinks = reliability.shortage == "shrink"
        if self.shrinks:
            self._check()
        self._fits = self.shrinks and memory(scenario).fits
        self._workers = np.full(self.nodes + 1, -1, dtype=np.int64)
        self._nodes = {scenario.strategy.workers: self.nodes}
        self._rates: dict[int, float] = {}

    def _check(self) -> None:
        strategy = self.scenario.strategy
        if "workers_" not in type(strategy).model_fields:
            message = f"a {strategy.kind} has no workers to go on without; give wait"
            raise FieldError(("reliability", "shortage"), message)
        if self._least > strategy.workers:
            message = f"the job has {strategy.workers} workers; give fewer"
            raise FieldError(("reliability", "least_workers"), message)

    def workers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """With how many workers training goes on with so many nodes; 0 where it waits."""
        nodes = np.minimum(nodes, self.nodes)
        for each in np.unique(nodes[self._workers[nodes] < 0]):
            self._workers[each] = self._most(int(each))
        return self._workers[nodes]

    def _most(self, nodes: int) -> int:
        full = self.scenario.strategy.workers
        if nodes >= self.nodes:
            return full
        if not self.shrinks:
            return 0
        return next((workers for workers in range(full - 1, self._least - 1, -1) if 0 < self.nodes_of(workers) <= nodes), 0)

    def nodes_of(self, workers: int) -> int:
        """Nodes that so many workers take; 0 where the scenario cannot be trained with so many."""
        if workers not in self._nodes:
            smaller = self._smaller(workers)
            possible = smaller is not None and (not self._fits or memory(smaller).fits)
            self._nodes[workers] = smaller.strategy.nodes_needed(smaller.cluster) if smaller and possible else 0
        return self._nodes[workers]

    def speed(self, workers: int) -> float:
        """Samples a second with so many workers, as a share of those with all."""
        full = self.scenario.strategy.workers
        apart = max(1, -(-(full - self._least) // _PREDICTED))
        above = full - (full - workers) // apart * apart
        below = max(self._least, above - apart)
        if workers == above or not self.nodes_of(above) or not self.nodes_of(below):
            return self._rate(workers) / self.samples_per_s
        share = (workers - below) / (above - below)
        return ((1 - share) * self._rate(below) + share * self._rate(above)) / self.samples_per_s

    @property
    def samples_per_s(self) -> float:
        """With all workers."""
        return self._rate(self.scenario.strategy.workers)

    def _rate(self, workers: int) -> float:
        if workers not in self._rates:
            smaller = self._smaller(workers)
            assert smaller is not None
            self._rates[workers] = timed(smaller).samples_per_s
        return self._rates[workers]

    def _smaller(self, workers: int) -> Scenario | None:
        scenario = self.scenario
        if workers == scenario.strategy.workers:
            return scenario
        if scenario.batch.total and scenario.batch.total % workers:
            return None
        try:
            return rebuilt(scenario, strategy=scenario.strategy.model_copy(update={"workers_": workers}))
        except FieldError:
            return None
