"""Data parallelism: every worker trains on its share of the samples, and gradients are averaged bucket by bucket."""

from __future__ import annotations

from typing import Literal, Self

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.replica_strategy import GradientAveraging, Microbatches, ReplicaStrategy, Shares


class DataParallel(Microbatches, GradientAveraging, ReplicaStrategy):
    """Every worker has the whole model, or with ZeRO a shard of it, and trains on its share of the samples.

    Gradients are averaged bucket by bucket, as in PyTorch's DistributedDataParallel, by the given algorithm or the library's
    choice. With several microbatches only the last is followed by an average; if gradients are sharded (`training.zero` from 2
    on) each is.
    """

    kind: Literal["data_parallel"] = "data_parallel"
    shares: Shares | None = None

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy for these samples. Raises FieldError for `micro_batch_size` if workers have different shares."""
        if self.shares is not None and self.micro_batch_size is not None:
            message = "workers have different shares of the samples; give microbatches instead"
            raise FieldError(("strategy", "micro_batch_size"), message)
        return super().for_samples(samples_per_worker)
