"""The base of everything users describe in YAML."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Unknown keys are errors and values never change. Attributes carry units in their names, YAML keys (aliases) in
    their values: `bandwidth_Bps` is written `bandwidth: 25 Gbit/s`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
