"""Emulated loading of samples: a worker waits before each step for as long as loading its batch would take.

Nothing is read: samples are in memory. Loading lasts as long as predicted, next to training, and some batches ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Self

from scaleproof.simulator.prediction.loading import BatchReader, readers
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.data_loading import stages
from scaleproof.simulator.strategy.scenario_job import job_of


class EmulatedLoading:
    """Batches that become available as by a loader that works next to training.

    durations_s: of each part of loading a batch; they overlap, each one batch after the other. prefetch: number of
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


def durations_s(scenario: Scenario, reader: BatchReader) -> list[float]:
    """Seconds of each part of loading a batch, where all readers of storage and cores share them equally."""
    everyone, job = readers(scenario), job_of(scenario)
    assert scenario.input is not None, "the caller has checked it"
    sharing = {"cluster": len(everyone), "node": sum(one.node == reader.node for one in everyone), "device": 1}
    parts = stages(scenario.input, job.cluster, job.reading_nodes)
    return [one.amount * reader.samples * sharing[one.shared_by] / one.capacity for one in parts]
