"""The base of everything users describe in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

# How deep something is that is listed, how many there are of something, how wide something is that is only multiplied:
# bounds far beyond any real system, below what would fill a machine's memory or overflow a float.
Depth = Annotated[int, Field(gt=0, le=100_000)]
Count = Annotated[int, Field(gt=0, le=1_000_000)]
Width = Annotated[int, Field(gt=0, le=1_000_000_000)]


class Spec(BaseModel):
    """Unknown keys are errors and values never change. Attributes carry units in their names, YAML keys (aliases) in
    their values: `bandwidth_Bps` is written `bandwidth: 25 Gbit/s`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic has it, but without what was worked out of the values before and kept (`cached_property`)."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied
