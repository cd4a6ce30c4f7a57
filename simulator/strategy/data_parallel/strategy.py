"""Data parallelism: every worker trains on its share of the samples, and gradients are averaged, bucket by bucket."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.common.units import Bytes
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.replica_strategy import Averaged, Replicated, Shares, averaging


class DataParallel(Averaged, Replicated):
    """Every worker holds the whole model, or with ZeRO's stages a part of it, and trains on its share of the samples.

    Gradients are averaged bucket by bucket, as PyTorch's DistributedDataParallel does it, by the algorithm that the library
    chooses if none is said. Of several microbatches the last alone is followed by an average; where gradients are shared out
    (`training.zero` from 2 on) each is.
    """

    kind: Literal["data_parallel"] = "data_parallel"
    first_bucket_bytes: Bytes = Field(2.0**20, alias="first_bucket", description="the same for the first bucket")
    microbatches_: Count = Field(1, alias="microbatches", description="passes whose gradients are added up before an average")
    shares: Shares | None = None

    @property
    def plan(self) -> Plan:
        return Plan(
            **averaging(self),
            first_bucket_bytes=self.first_bucket_bytes,
            microbatches=self.microbatches_,
            shares=self.shares,
        )
