"""Input: reading and decoding samples beside the training, some batches ahead."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds


class Storage(Spec):
    """Where samples are read from: a disk of each node, or a file system that all nodes share."""

    sample_bytes: Bytes = Field(alias="sample", description="size of a sample as it is stored")
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth", description="all readers together; of a node, on each")
    shared_by: Literal["node", "cluster"] = "node"


class Input(Spec):
    """What a worker's first stage waits for before each step: its samples, read from storage and decoded on cores of its node.

    A batch's samples are read and decoded at the same time, one behind the other, so the slower of the two tells how long it
    takes; the next batch follows it. prefetch: batches that may be ready before they are needed; 0 begins to load when the step
    begins. Where all steps take the same time one batch ahead does as much as several.
    """

    storage: Storage | None = Field(None, description="absent: samples are in memory and only decoded")
    decode_s: Seconds = Field(0.0, alias="decode", description="time of one core for one sample")
    cores: Annotated[float, Field(gt=0, le=1_000_000)] = Field(1, description="of a node, that do nothing but decode")
    prefetch: Annotated[int, Field(ge=0, le=1000)] = 1

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.storage is None and self.decode_s == 0:
            raise ValueError("neither read nor decoded; give storage, decode or both, or leave input out")
        return self
