"""The device a rank computes on: from layers to seconds, by vendor numbers or by what was measured."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from simulator.model.layers import Layer
from simulator.spec import Spec
from simulator.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Optimizer = Literal["sgd", "momentum", "adam"]

ELEMENT_BYTES: Final[dict[str, int]] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
# Elements read and written per parameter: sgd reads w and g and writes w; momentum and Adam also read and write states.
OPTIMIZER_ACCESSES: Final[dict[str, int]] = {"sgd": 3, "momentum": 5, "adam": 7}
# Bytes of weights, gradients and optimizer state per parameter; 16-bit training keeps 32-bit master copies
# (arXiv 1910.02054, section 3.1).
_STATES: Final[dict[str, int]] = {"sgd": 2, "momentum": 3, "adam": 4}


def state_bytes(parameters: int, precision: str, optimizer: str) -> float:
    """Bytes that weights, gradients and optimizer state hold for `parameters` parameters."""
    size = ELEMENT_BYTES[precision]
    if size == 2:
        return parameters * (2 * size + 4 * (_STATES[optimizer] - 1))
    return parameters * size * _STATES[optimizer]


def optimizer_bytes(parameters: float, optimizer: str, precision: str) -> float:
    """Bytes that an optimizer's step moves: master weights and states are 32-bit also where gradients are 16-bit."""
    return parameters * max(4, ELEMENT_BYTES[precision]) * OPTIMIZER_ACCESSES[optimizer]


class Linear(Spec):
    """A measured time that grows with the number of samples: base + per_sample · samples."""

    base_s: Seconds = Field(alias="base")
    per_sample_s: Seconds = Field(alias="per_sample")

    def at(self, samples: float) -> float:
        """Seconds for `samples` samples."""
        return self.base_s + self.per_sample_s * samples


class MeasuredLayer(Spec):
    """Times of one kind of layer, as `calibrate` measured them on one device."""

    signature: str
    precision: Precision
    forward: Linear
    backward: Linear


class MeasuredOptimizer(Spec):
    """Time of an optimizer's step: base + per_parameter · parameters."""

    optimizer: Optimizer
    precision: Precision
    base_s: Seconds = Field(alias="base")
    per_parameter_s: Seconds = Field(alias="per_parameter")


class Device(Spec):
    """One device. Times come from `measured` where it knows the layer, else from peak rate times efficiency."""

    name: str
    peak_flops: dict[Precision, FlopsPerSecond] = Field(alias="peak", description="dense FLOP/s by precision")
    efficiency: float = Field(1.0, gt=0, le=1, description="share of the peak that training reaches")
    layer_overhead_s: Seconds = Field(
        0.0, alias="layer_overhead", description="time a layer takes in each pass however small it is"
    )
    memory_bytes: Bytes = Field(alias="memory")
    memory_bandwidth_Bps: BytesPerSecond = Field(alias="memory_bandwidth")
    source: str = ""
    measured_layers: tuple[MeasuredLayer, ...] = ()
    measured_optimizers: tuple[MeasuredOptimizer, ...] = ()

    def layer_s(self, layer: Layer, samples: float, precision: Precision) -> tuple[float, float]:
        """Seconds of the layer's forward and backward pass over `samples` samples.

        Without a measurement the backward pass counts twice the forward FLOPs: one product for the gradient of the
        input, one for that of the weights. Raises KeyError when the device has no peak rate for `precision`.
        """
        for measured in self.measured_layers:
            if measured.signature == layer.signature and measured.precision == precision:
                return measured.forward.at(samples), measured.backward.at(samples)
        forward_s = layer.forward_flops * samples / (self.peak_flops[precision] * self.efficiency)
        return self.layer_overhead_s + forward_s, self.layer_overhead_s + 2 * forward_s

    def optimizer_s(self, parameters: float, optimizer: Optimizer, precision: Precision) -> float:
        """Seconds of one optimizer step over `parameters` parameters: measured, else bound by memory bandwidth."""
        for measured in self.measured_optimizers:
            if measured.optimizer == optimizer and measured.precision == precision:
                return measured.base_s + measured.per_parameter_s * parameters
        return optimizer_bytes(parameters, optimizer, precision) / self.memory_bandwidth_Bps
