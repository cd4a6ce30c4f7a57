"""The model of a captured training script, whose operators are in the record of its strategy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard


class CapturedModel(ModelSpec):
    """What is known of the model of a captured script without its operators. It is one layer, without FLOPs of its own."""

    kind: Literal["captured"] = "captured"
    parameters_: int = Field(1, gt=0, le=10**15, alias="parameters", description="trained parameters of the whole model")
    sequence: Width | None = Field(None, description="tokens of a sample, if the script reads tokens")

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """One layer with all parameters. Raises FieldError if it shall be divided among ranks."""
        refuse_to_shard(self.kind, shard)
        return [Layer("script", f"captured({self.parameters_})", (), (self.parameters_,), 0)]
