"""A model whose layers are timed one by one within a training step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaleproof.simulator.model import ModelSpec
from scaleproof.validator.probe.adaptive import DeviceTimer
from scaleproof.validator.train.layer_graph import as_tuple
from scaleproof.validator.train.models.wiring import DATA, Wire, outputs_of
from scaleproof.validator.train.samples import arrays
from scaleproof.validator.train.trained_model import RealModel


class ProbedModel:
    """The layers of a model with a batch of `samples` random samples.

    same: the same model with another batch, with which it shares the memory of its parameters.
    """

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, samples: int, same: ProbedModel | None = None
    ) -> None:
        self.specs, self._model = spec.build_layers(), RealModel(spec, 0, dtype, samples)
        self._wiring, self._outputs = self._model.wiring, outputs_of(self._model.wiring)
        numbers = range(len(self._wiring))
        built = zip(numbers, self._model.build(numbers), strict=True)
        self.layers = {number: module.to(device, dtype) for number, module in built}
        if same is not None:
            for number, layer in self.layers.items():
                for own, shared in zip(layer.parameters(), same.layers[number].parameters(), strict=True):
                    own.data = shared.data
        inputs, targets = arrays(spec, samples, np.random.default_rng(0))

        def placed(array: Any) -> Tensor:
            tensor = torch.from_numpy(array).to(device)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        self._data = {Wire(DATA, place): placed(array) for place, array in enumerate(inputs)}
        self._targets = placed(targets)

    def free_gradients(self) -> None:
        """Frees the memory of gradients."""
        for module in self.layers.values():
            module.zero_grad()

    def passes_s(self, clock: DeviceTimer) -> list[tuple[float, float]]:
        """Forward and backward seconds of each layer in one training step; the last layer includes the loss.

        There is one backward pass, as in training: hooks on the gradients of outputs mark where that of a layer begins, at the
        last of its outputs. It ends where that of another layer begins.
        """
        self.free_gradients()
        values: dict[Wire, Any] = dict(self._data)
        if self._model.prelude is not None:
            derived = as_tuple(self._model.prelude(*self._data.values()))
            values |= {Wire(DATA, len(self._data) + place): tensor for place, tensor in enumerate(derived)}
        clock.wait()
        begun: dict[int, Any] = {}
        marks = [clock.mark()]
        for number, module in self.layers.items():
            result = module(*(values[wire] for wire in self._wiring[number]))
            if number == len(self.layers) - 1:
                result = self._model.loss(result, self._targets)
            written = (result,) if self._outputs[number] == 1 else result
            for place, value in enumerate(written):
                values[Wire(number, place)] = value
                if number < len(self.layers) - 1 and value.requires_grad:
                    value.register_hook(_mark(begun, number, clock))
            marks.append(clock.mark())
        back = clock.mark()
        result.backward()
        end = clock.mark()
        clock.wait()
        begun[len(self.layers) - 1] = back
        order = sorted(begun, reverse=True)
        begins = [begun[number] for number in order]
        backward_s = {number: clock.seconds(*pair) for number, *pair in zip(order, begins, [*begins[1:], end], strict=True)}
        forward_s = [clock.seconds(*pair) for pair in pairwise(marks)]
        return [(forward, max(0.0, backward_s.get(number, 0.0))) for number, forward in enumerate(forward_s)]


def _mark(begun: dict[int, Any], number: int, clock: DeviceTimer) -> Callable[[Tensor], None]:
    """Hook that marks the begin of a layer's backward pass."""

    def mark(_: Tensor) -> None:
        begun[number] = clock.mark()

    return mark
