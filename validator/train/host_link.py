"""The emulated link between a rank and the memory of its host, where ranks on processors keep offloaded optimizer states."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from scaleproof.simulator.strategy.job import Job


class HostLink:
    """The link of a rank, with the predicted rate. Copies within memory stand for its copies, and last as long as these.

    Gradients are sent one after another, as soon as they are complete; an update begins once all have arrived.
    """

    def __init__(self, job: Job) -> None:
        link_Bps = job.host_link_Bps(job.ranks)
        # seconds per element of gradients and of parameters; hosts keep parameters that are offloaded as well
        self._sent_s = job.accumulated_bytes / link_Bps
        self.fetches_shards = "parameters" in job.offload
        self._fetched_s = 0.0 if self.fetches_shards else job.shard_bytes / link_Bps
        self._link_Bps = link_Bps
        self._lock = threading.Lock()
        # elements sent in this step; when the last of them arrive, of time.perf_counter
        self._elements = 0
        self._arrived_s = 0.0
        # when the last shards of parameters arrive at the device; ends of the last gather as it is, and as it would be
        self._shards_s = self._gathered_s = self._emulated_s = 0.0
        # begin of the wait for a gather that has just ended
        self._waited_s: float | None = None

    def note_wait(self) -> None:
        """Notes that the rank begins to wait for a gather. A device's host would begin the next copy meanwhile."""
        self._waited_s = time.perf_counter()

    def fetch_shards(self, size_bytes: float) -> float:
        """Begins to copy shards of parameters to the device, to be gathered there; returns when they arrive."""
        begin_s, self._waited_s = self._waited_s or time.perf_counter(), None
        self._shards_s = max(self._shards_s, begin_s) + size_bytes / self._link_Bps
        return self._shards_s

    def gathered_s(self, begin_s: float, end_s: float, fetched_s: float) -> float:
        """When a gather would end that began once its shards had arrived, at `fetched_s`. To be called for each in order."""
        lasts_s = max(0.0, end_s - max(begin_s, self._gathered_s))
        self._gathered_s, self._emulated_s = end_s, max(fetched_s, self._emulated_s) + lasts_s
        return self._emulated_s

    def send(self, elements: int) -> None:
        """Begins to send gradients that are complete."""
        with self._lock:
            self._arrived_s = max(self._arrived_s, time.perf_counter()) + elements * self._sent_s
            self._elements += elements

    def begin_updates(self, optimizer: torch.optim.Optimizer, elements: int) -> None:
        """Has each step of the optimizer, which updates a number of elements, begin once their gradients have arrived. To be
        called before other hooks of the optimizer's steps are registered."""
        optimizer.register_step_pre_hook(lambda *_: self._complete(elements))

    def end_updates(
        self, optimizer: torch.optim.Optimizer, elements: int, begins_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """Has each step of the optimizer end once the updated parameters have been copied back, from `begins_s` on. To be
        called after other hooks of the optimizer's steps are registered."""

        def wait(*_: Any) -> None:
            until_s = begins_s() + elements * self._fetched_s
            time.sleep(max(0.0, until_s - time.perf_counter()))

        optimizer.register_step_post_hook(wait)

    def _complete(self, elements: int) -> None:
        """Sends those of a step's gradients that are not sent, and waits until all have arrived."""
        self.send(max(0, elements - self._elements))
        self._elements, self._waited_s = 0, None
        time.sleep(max(0.0, self._arrived_s - time.perf_counter()))
