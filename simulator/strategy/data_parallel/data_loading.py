"""Data loading: reading and decoding samples concurrently with training, some batches ahead."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds


class Storage(Spec):
    """Source of samples: a disk on each node, or a file system that all nodes share."""

    sample_bytes: Bytes = Field(alias="sample", description="stored size of a sample")
    bandwidth_Bps: PositiveBytesPerSecond = Field(
        alias="bandwidth", description="total of all readers; per node if shared by node"
    )
    shared_by: Literal["node", "cluster"] = "node"


class Input(Spec):
    """Samples that a worker's first stage needs before each step, read from storage and decoded on cores of its node.

    The samples of a batch are read and decoded in a pipeline, so the slower of the two determines the loading time. prefetch:
    batches that may be loaded ahead; with 0 loading begins when the step begins. If all steps take the same time, one batch
    ahead is as good as several.
    """

    storage: Storage | None = Field(None, description="if absent, samples are in memory and only decoded")
    decode_s: Seconds = Field(0.0, alias="decode", description="core time per sample")
    cores: Annotated[float, Field(gt=0, le=1_000_000)] = Field(1, description="cores of a node that are reserved for decoding")
    prefetch: Annotated[int, Field(ge=0, le=1000)] = 1

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.storage is None and self.decode_s == 0:
            raise ValueError("input has no effect; give storage, decode or both, or leave input out")
        return self
