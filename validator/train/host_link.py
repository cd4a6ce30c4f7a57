"""The emulated link between a rank and the memory of its host, where ranks on processors keep offloaded optimizer states."""

from __future__ import annotations

import threading
import time

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
        # when the last shards of parameters arrive at the device
        self._shards_s = 0.0

    def fetch_shards(self, size_bytes: float) -> float:
        """Begins to copy shards of parameters to the device, to be gathered there; returns the seconds until they arrive."""
        now_s = time.perf_counter()
        self._shards_s = max(self._shards_s, now_s) + size_bytes / self._link_Bps
        return self._shards_s - now_s

    def send(self, elements: int) -> None:
        """Begins to send gradients that are complete."""
        with self._lock:
            self._arrived_s = max(self._arrived_s, time.perf_counter()) + elements * self._sent_s
            self._elements += elements

    def begin_updates(self, optimizer: torch.optim.Optimizer, elements: int) -> None:
        """Has each step of the optimizer, which updates a number of elements, begin once their gradients have arrived. To be
        called before other hooks of the optimizer's steps are registered."""
        optimizer.register_step_pre_hook(lambda *_: self._complete(elements))

    def end_updates(self, optimizer: torch.optim.Optimizer, elements: int) -> None:
        """Has each step of the optimizer end once the updated parameters have been copied back. To be called after other hooks
        of the optimizer's steps are registered."""
        optimizer.register_step_post_hook(lambda *_: time.sleep(elements * self._fetched_s))

    def _complete(self, elements: int) -> None:
        """Sends those of a step's gradients that are not sent, and waits until all have arrived."""
        self.send(max(0, elements - self._elements))
        self._elements = 0
        time.sleep(max(0.0, self._arrived_s - time.perf_counter()))
