"""Emulated loading of samples: a worker waits before each step for as long as reading and decoding its batch would take.

Nothing is read: samples are in memory. Loading lasts as long as predicted, next to training, and some batches ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self

from scaleproof.simulator.model.layers import inputs_of
from scaleproof.simulator.parallelism import ModelParallel
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of


class BatchReader(NamedTuple):
    """The ranks of a worker's first stage, or a rank to which inputs of a divided model go. node: of the first of the ranks.
    samples: of a batch."""

    ranks: tuple[int, ...]
    node: int
    samples: int


class EmulatedLoading:
    """Batches that become available as by a loader that works next to training.

    durations_s: of reading a batch and of decoding it, which overlap, each one batch after the other. prefetch: number of
    batches that may be loaded ahead; with 0 loading begins when a batch is waited for.
    """

    def __init__(self, durations_s: Sequence[float], prefetch: int) -> None:
        self._durations_s, self._prefetch = durations_s, prefetch
        self._began_s = time.perf_counter()
        # end of loading the last batch, by duration; times at which the last batches were taken
        self._loaded_s = [self._began_s] * len(durations_s)
        self._taken_s: deque[float] = deque(maxlen=max(1, prefetch))

    @classmethod
    def of(cls, scenario: Scenario, rank: int) -> Self | None:
        """The loading of a rank's batches; None where the rank does not wait for samples."""
        if scenario.input is None or not (own := [one for one in readers(scenario) if rank in one.ranks]):
            return None
        return cls(durations_s(scenario, own[0]), scenario.input.prefetch)

    def wait(self) -> None:
        """Waits for the next batch."""
        if self._prefetch == 0:
            free_s = time.perf_counter()
        else:
            free_s = self._taken_s[0] if len(self._taken_s) == self._prefetch else self._began_s
        pairs = zip(self._loaded_s, self._durations_s, strict=True)
        self._loaded_s = [max(loaded_s, free_s) + duration_s for loaded_s, duration_s in pairs]
        left_s = max(self._loaded_s) - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        self._taken_s.append(time.perf_counter())


def readers(scenario: Scenario) -> list[BatchReader]:
    """All readers of batches, as in the prediction."""
    strategy, plan, devices = scenario.strategy, scenario.strategy.plan, scenario.cluster.node.devices
    if isinstance(strategy, ModelParallel):
        layers = job_of(scenario).layers
        first = {rank for rank, read in zip(strategy.device_of(layers), inputs_of(layers), strict=True) if not read}
        return [BatchReader((rank,), rank // devices, scenario.samples_per_worker) for rank in sorted(first)]
    grid = plan.grid_on(scenario.cluster)
    found = []
    for worker in range(plan.workers):
        # a step of the program may have several training steps, whose samples are loaded as one batch
        samples = strategy.program_steps * plan.samples_of(worker, scenario.samples_per_worker)
        found.append(BatchReader(tuple(grid.members(worker, 0)), grid.place(worker, 0)[0], samples))
    return found


def durations_s(scenario: Scenario, reader: BatchReader) -> list[float]:
    """Seconds of reading a batch and of decoding it, where all readers of storage and cores share them equally."""
    input_, everyone = scenario.input, readers(scenario)
    assert input_ is not None, "the caller has checked it"
    neighbours = sum(one.node == reader.node for one in everyone)
    seconds = []
    if input_.storage is not None:
        sharing = len(everyone) if input_.storage.shared_by == "cluster" else neighbours
        seconds.append(input_.storage.sample_bytes * reader.samples * sharing / input_.storage.bandwidth_Bps)
    if input_.decode_s > 0:
        seconds.append(input_.decode_s * reader.samples * neighbours / input_.cores)
    return seconds
