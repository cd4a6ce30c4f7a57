"""Fields of model parallelism: one copy of the model on several devices, each layer on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.model.graph import branches, place_branches
from scaleproof.simulator.model.layers import Layer, cut_into_stages, owners_of
from scaleproof.simulator.parallelism.strategy import Strategy


class ModelParallel(Strategy):
    """Branches of a model run concurrently on different devices; a chain is divided into `stages`, which run one after
    another."""

    kind: Literal["model_parallel"] = "model_parallel"
    stages: Count = Field(1, description="devices")

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks that each device has a branch or a part of the chain; raises FieldError."""
        devices = len(set(self.device_of(layers)))
        if devices < self.stages:
            message = f"{self.stages} devices for a model with {devices} branches; give at most {devices}"
            raise FieldError(("strategy", "stages"), message)

    def parts(self, layers: Sequence[Layer]) -> list[list[Layer]]:
        """Layers on each device; shared weights have a copy on each device that uses them."""
        device_of = self.device_of(layers)
        own = with_own_weights(layers, device_of)
        return [[layer for layer, at in zip(own, device_of, strict=True) if at == device] for device in range(self.stages)]

    def stage_layers(self, layers: Sequence[Layer]) -> Sequence[Sequence[int]]:
        """Indices of the layers on each device."""
        device_of = self.device_of(layers)
        return [[i for i, at in enumerate(device_of) if at == device] for device in range(self.stages)]

    def device_of(self, layers: Sequence[Layer]) -> list[int]:
        """The device of each layer. Raises FieldError for more devices than a chain has blocks."""
        if branches(layers):
            return place_branches(layers, self.stages)
        return [device for device, part in enumerate(cut_into_stages(layers, self.stages)) for _ in part]


def with_own_weights(layers: Sequence[Layer], device_of: Sequence[int]) -> list[Layer]:
    """The layers, where layers that share weights with a layer on another device have a copy of them."""
    owners = owners_of(layers)
    return [
        replace(layer, tensors=layers[owners[i]].tensors) if i in owners and device_of[owners[i]] != device_of[i] else layer
        for i, layer in enumerate(layers)
    ]
