"""Precision of gradients: what training software accumulates and reduces them in, for each training precision."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema, model_validator

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Precision, storage_precision
from scaleproof.simulator.common.spec import Spec


class GradientPrecision(Spec):
    """Precision of gradients for each training precision, or one precision for all of them.

    Training precisions of 8 and 4 bits have the value of bf16, in which they store gradients, unless they have their own.
    """

    any: Literal["fp32", "bf16", "fp16"] | None = Field(None, description="for training precisions without a value")
    bf16: Literal["fp32", "bf16"] | None = None
    fp16: Literal["fp32", "fp16"] | None = None
    fp8: Literal["fp32", "bf16"] | None = None
    fp4: Literal["fp32", "bf16"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        return {"any": value} if isinstance(value, str) else value

    def element_bytes(self, training: Precision) -> int | None:
        """Bytes of a gradient's element, at least those of the stored training precision; None where nothing is given."""
        stored = storage_precision(training)
        name = getattr(self, training, None) or getattr(self, stored, None) or self.any
        return None if name is None else max(ELEMENT_BYTES[name], ELEMENT_BYTES[stored])


_NAMES: Final = ("fp32", "bf16", "fp16")
_SCHEMA: Final = {
    "anyOf": [
        {"enum": list(_NAMES)},
        {
            "type": "object",
            "properties": {field: {"enum": list(_NAMES)} for field in GradientPrecision.model_fields},
            "additionalProperties": False,
        },
    ]
}
AnyGradientPrecision = Annotated[GradientPrecision, WithJsonSchema(_SCHEMA)]
