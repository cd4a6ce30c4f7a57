"""Device memory of training software in addition to parameters, optimizer states and activations."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes

_WIDE_BYTES: Final = 4


class Loss(Spec):
    """Copies of the logits that a loss function allocates."""

    wide: bool = Field(True, description="copies have 32 bits where logits have 16")
    more: int = Field(2, ge=0, le=100, description="copies at the peak, in addition to the one kept for the backward pass")

    def logit_bytes(self, element_bytes: int) -> tuple[int, int]:
        """Bytes per logit that are kept for the backward pass, and bytes allocated in addition at the peak."""
        copy = max(_WIDE_BYTES, element_bytes) if self.wide else element_bytes
        own = element_bytes if copy > element_bytes else 0
        return copy, self.more * copy + own


class MemoryBehaviour(Spec):
    """Memory that a framework allocates; fields are read by `scaleproof.simulator.memory`."""

    loss: Loss = Loss()
    gradients: Literal["made", "buffers", "both"] = Field(
        "made", description="allocated anew in each step, in buffers that stay, or 16-bit ones next to 32-bit buffers"
    )
    copies_buckets: bool = Field(True, description="gradients are copied into buckets that stay allocated")
    master_bytes: int = Field(4, ge=0, le=16, description="of a parameter's copy in the optimizer's precision")
    main_gradients: bool = Field(False, description="16-bit gradients are copied to 32 bits for the optimizer's step")
    flat_bytes: int = Field(0, ge=0, le=64, description="flattened gradient copies per parameter whose states a rank owns")
    reduce_elements: float = Field(0.0, ge=0, description="elements of the reduction bucket that is allocated then")
    stand_ins: bool = Field(False, description="weight-gradient products add to buffers and return a shared dummy tensor")
    receives_all: bool = Field(True, description="a pipeline stage has a receive buffer for each microbatch")
    keeps_outputs: bool = Field(True, description="a pipeline stage keeps what it has sent until its backward pass")
    fp8_input_bytes: Literal[1, 2] = Field(2, description="bytes per element of what 8-bit products keep of their inputs")
    context_bytes: Bytes = Field(500 * 2.0**20, alias="context", description="of the device's context and loaded kernels")
    reports: Literal["total_bytes", "reserved_bytes", "allocated_bytes"] = Field(
        "total_bytes", description="which figure the framework's logs print"
    )
