"""Devices: seconds of layers and optimizer steps, from the vendor's numbers or from measurements.

A device that is given by data-sheet facts alone has the kernel parameters of its generation.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scaleproof.simulator.cluster.device.kernels.parameters import (
    Kernels,
    Speed,
    at_power_limit,
    direct_flops,
    with_peak_share,
)
from scaleproof.simulator.cluster.device.kernels.passes import passes_s, weights_s
from scaleproof.simulator.cluster.device.kernels.products import Recipe, narrow_products
from scaleproof.simulator.cluster.device.kernels.rates import State
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import (
    COMPUTE_RATE,
    POWER,
    Bytes,
    Hertz,
    PositiveFlopsPerSecond,
    PositiveMemoryBytesPerSecond,
    Seconds,
    Watts,
)
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, Operator

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]
Optimizer = Literal["sgd", "momentum", "adam", "lamb", "adafactor", "lion", "muon"]
StateBits = Literal[8, 16, 32]

# A number or an array of numbers.
Amount = TypeVar("Amount", float, NDArray[np.float64])

# Bytes of a stored element, by precision: operands of products in 8 or 4 bits are stored in 16 bits, and cast before.
ELEMENT_BYTES: Final[dict[str, int]] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "fp4": 2}
# Bytes of an element that products in 8 or 4 bits read.
_NARROW: Final = {"fp8": 1.0, "fp4": 0.5}
# Elements that an optimizer reads and writes per parameter: sgd reads w and g and writes w; momentum and Adam also read and
# write states. LAMB writes Adam's update, reads it and w for their norms, and both again to apply it; Adafactor reads g once
# more for its sums. Lion and Muon have a momentum; Muon's products of matrices are counted separately.
OPTIMIZER_ACCESSES: Final[dict[str, int]] = {
    "sgd": 3, "momentum": 5, "adam": 7, "lamb": 12, "adafactor": 4, "lion": 5, "muon": 5,
}  # fmt: skip
# Elements of states per parameter: a momentum, or two moments. Adafactor's sums are few, and Muon has two moments of parameters
# that are no matrices of blocks.
OPTIMIZER_STATES: Final[dict[str, int]] = {
    "sgd": 0, "momentum": 1, "adam": 2, "lamb": 2, "adafactor": 0, "lion": 1, "muon": 1,
}  # fmt: skip
# Elements that have one 32-bit scale in states of 8 bits: 256 in bitsandbytes since 0.44, 2,048 before; and the smallest tensor
# whose states have 8 bits (min_8bit_size).
STATE_BLOCK: Final = 256
LEAST_NARROW_STATES: Final = 4096
# Bytes per parameter that the norm of 32-bit gradients reads (4), and clipping reads and writes (8).
CLIP_BYTES: Final = 12.0


def storage_precision(precision: Precision) -> Precision:
    """The precision of stored activations and gradients, and of all operators other than matrix products."""
    return "bf16" if precision in _NARROW else precision


def is_narrow(precision: Precision) -> bool:
    """Whether the matrix products of blocks compute in 8 or 4 bits."""
    return precision in _NARROW


def state_bytes(precision: str, master: bool = True, bits: StateBits | None = None) -> float:
    """Bytes of an element of optimizer states: of `bits` bits, of 32 even if gradients have 16 if None, or of the precision
    without master weights. States of 8 bits have a 32-bit scale per block (arXiv 2110.02861)."""
    if bits is None:
        return max(4, ELEMENT_BYTES[precision]) if master else ELEMENT_BYTES[precision]
    return 1 + 4 / STATE_BLOCK if bits == 8 else bits // 8


def optimizer_bytes(
    parameters: Amount, optimizer: str, precision: str,
    master: bool = True, bits: StateBits | None = None, ema: str | None = None,
) -> Amount:  # fmt: skip
    """Bytes that an optimizer step reads and writes; master weights and states have 32 bits even if gradients have 16, and
    those of the precision without master weights. bits: of states. ema: precision of an average of parameters, which is read
    and written next to them."""
    size, accesses = state_bytes(precision, master), 2 * OPTIMIZER_STATES[optimizer]
    moved = size * (OPTIMIZER_ACCESSES[optimizer] - accesses) + state_bytes(precision, master, bits) * accesses
    return parameters * (moved if ema is None else moved + size + 2 * ELEMENT_BYTES[ema])


class MeasuredLayer(Spec):
    """Durations of one kind of layer, as `calibrate` measured them on a device.

    samples: the timed numbers of samples, rising. forward, backward: duration for each of them. Other numbers are interpolated,
    since libraries change algorithms with the number of samples.
    """

    signature: str
    precision: Precision
    samples: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    forward_s: tuple[Seconds, ...] = Field(alias="forward")
    backward_s: tuple[Seconds, ...] = Field(alias="backward")

    @model_validator(mode="after")
    def _a_duration_for_each(self) -> Self:
        if any(second <= first for first, second in pairwise(self.samples)):
            raise ValueError("samples: not in rising order; sort them, each number once")
        for name, durations in (("forward", self.forward_s), ("backward", self.backward_s)):
            if len(durations) != len(self.samples):
                raise ValueError(
                    f"{name}: {len(durations)} durations for {len(self.samples)} numbers of samples; give one each"
                )
        return self

    def passes_s(self, samples: float) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass over `samples` samples."""
        return _interpolated(samples, self.samples, self.forward_s), _interpolated(samples, self.samples, self.backward_s)


def _interpolated(samples: float, timed: Sequence[float], durations_s: Sequence[float]) -> float:
    """Seconds for `samples` samples from those of the timed numbers: on the line through the nearest two. One duration, and the
    last one of those that fall, is proportional to the number of samples beyond it."""
    after = min(max(1, bisect_left(timed, samples)), len(timed) - 1)
    if len(timed) == 1 or (samples > timed[-1] and durations_s[-1] <= durations_s[-2]):
        return durations_s[-1] * samples / timed[-1]
    slope_s = (durations_s[after] - durations_s[after - 1]) / (timed[after] - timed[after - 1])
    return max(0.0, durations_s[after] + slope_s * (samples - timed[after]))


class MeasuredOptimizer(Spec):
    """Measured duration of an optimizer step: base + per_parameter · parameters."""

    optimizer: Optimizer
    precision: Precision
    base_s: Seconds = Field(alias="base")
    per_parameter_s: Seconds = Field(alias="per_parameter")


# What a device of a generation that is no GPU is called.
_NOUNS: Final = {"cpu": "rank", "tpu": "TPU", "trainium": "device", "gaudi": "device"}
# Minimum peak of a GPU that has no generation; no processor core reaches it.
_GPU_FLOPS: Final = 1e12


class Device(Spec):
    """A device. A layer's time is the measured one if there is one, else that of its kernels, else follows from the peak rate.

    kernels: parameters of the kernel model; where its generation and number of processors are all that is given, those of the
    generation. A device without them, or with an efficiency, reaches the same share of its peak in all operators: `efficiency`,
    which is 1 if absent. measured, assumed: fields that were measured or assumed; the others are as in data sheets.
    """

    name: str
    description: str = ""
    peak_flops: dict[Precision, PositiveFlopsPerSecond] = Field(alias="peak", description="dense FLOP/s by precision")
    kernels: Kernels | None = None
    efficiency: float | None = Field(
        None, gt=0, le=1, description="share of the peak that training reaches, in place of kernels"
    )
    layer_overhead_s: Seconds = Field(
        0.0, alias="layer_overhead", description="fixed time of a layer in each pass, for devices with an efficiency"
    )
    memory_bytes: Bytes = Field(alias="memory", description="nominal size of the device's memory")
    usable_memory_bytes: Bytes | None = Field(
        None, alias="usable_memory", description="memory that programs can allocate, contexts included; all of it if absent"
    )
    memory_bandwidth_Bps: PositiveMemoryBytesPerSecond = Field(alias="memory_bandwidth")
    power_limit_W: Watts | None = Field(None, gt=0, alias="power_limit", description="power limit; no throttling if absent")
    l2_bytes: Bytes | None = Field(None, alias="l2", description="second-level cache; for information")
    clock_Hz: Hertz | None = Field(
        None, alias="clock", description="highest clock, which convolutions in narrow groups depend on"
    )
    source: str = ""
    measured: tuple[str, ...] = Field((), description="fields with measured values, such as kernels.tile_share, or kernels")
    assumed: tuple[str, ...] = Field((), description="fields with assumed values; the others are as in data sheets")
    measured_layers: tuple[MeasuredLayer, ...] = ()
    measured_optimizers: tuple[MeasuredOptimizer, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _kernels_by_generation(cls, data: Any) -> Any:
        return with_generation_kernels(data)

    @property
    def capacity_bytes(self) -> float:
        """Bytes of memory that programs can allocate."""
        return self.memory_bytes if self.usable_memory_bytes is None else self.usable_memory_bytes

    @property
    def noun(self) -> str:
        """What one device is called: 'GPU', 'TPU', 'device', or 'rank' for a processor or its cores."""
        if self.kernels is not None:
            return _NOUNS.get(self.kernels.generation, "GPU")
        return "GPU" if max(self.peak_flops.values()) >= _GPU_FLOPS else "rank"

    @model_validator(mode="after")
    def _usable_memory_fits(self) -> Self:
        if self.capacity_bytes > self.memory_bytes:
            raise ValueError("usable_memory: more than memory; give at most that, or leave it out")
        return self

    @model_validator(mode="after")
    def _kernels_can_be_timed(self) -> Self:
        if self.kernels is not None and self.efficiency is None and self.layer_overhead_s:
            raise ValueError("layer_overhead: goes with an efficiency; kernels have a launch and an issue instead")
        return self

    @model_validator(mode="after")
    def _states_are_of_fields(self) -> Self:
        for name in (*self.measured, *self.assumed):
            fields = type(self).model_fields
            for part in name.split("."):
                found = {field.alias or own: field for own, field in fields.items()}.get(part)
                if found is None:
                    raise ValueError(f"{name}: no field of a device has this name; give those such as kernels.tile_share")
                fields = Kernels.model_fields if part == "kernels" else {}
        return self

    def state_of(self, field: str) -> State:
        """How the value of a field is known: as its own name in `measured` or `assumed` says, else that of its mapping.

        `kernels` stands for all its parameters, but not for the facts `kernels.generation` and `kernels.processors`.
        """
        mapping = () if field in ("kernels.generation", "kernels.processors") else (field.partition(".")[0],)
        for name in (field, *mapping):
            if name in self.measured:
                return "measured"
            if name in self.assumed:
                return "assumed"
        return "data sheet"

    @property
    def kernels_state(self) -> State:
        """How the rate of kernels is known. An efficiency, and times of layers, count as measured."""
        if self.kernels is None or self.efficiency is not None or self.measured_layers:
            return "measured"
        return self.state_of("kernels.tile_share")

    def layer_s(self, layer: Layer, samples: float, precision: Precision) -> tuple[float, float]:
        """Seconds of the layer's forward and backward pass over `samples` samples, without collectives.

        Raises KeyError if the device has no peak rate for `precision`.
        """
        measured = self.measured_layer_s(layer, samples, precision)
        if measured is not None:
            return measured
        if self.kernels is not None and self.efficiency is None:
            return passes_s(self.speed(precision, self.kernels), layer.operators, layer.kept, samples)
        forward_s = self._flat_s(layer.forward_flops * samples, precision)
        backward_s = self._flat_s(layer.backward_flops * samples, precision)
        return self.layer_overhead_s + forward_s, (self.layer_overhead_s if layer.has_backward else 0.0) + backward_s

    def measured_layer_s(self, layer: Layer, samples: float, precision: Precision) -> tuple[float, float] | None:
        """Measured seconds of the layer's forward and backward pass; None if the layer was not measured."""
        for measured in self.measured_layers:
            if measured.signature == layer.signature and measured.precision == precision:
                return measured.passes_s(samples)
        return None

    def speed(self, precision: Precision, kernels: Kernels, faster: float = 1.0, burst: bool = False) -> Speed:
        """Rates of `kernels` at a precision and at the device's power limit, with `faster` times the device's peak; of short
        bursts if `burst`."""
        size_bytes = ELEMENT_BYTES[precision]
        peak_flops = self.peak_flops[precision] * faster
        winograd, rates = precision == "fp32", kernels.product_rates(precision)
        kernels = at_power_limit(kernels, self.power_limit_W)
        operand_bytes = _NARROW.get(precision)
        return Speed(
            kernels, peak_flops, self.memory_bandwidth_Bps, size_bytes, winograd, rates, burst, operand_bytes,
            direct_flops=direct_flops(kernels, self.clock_Hz),
        )  # fmt: skip

    def narrow_speed(self, precision: Precision, kernels: Kernels, recipe: Recipe) -> Speed:
        """Rates of products in 8 or 4 bits that training sustains: those that were measured in this precision, else those in 16
        bits with the higher peak. What training sustains is known in 16 bits; fewer bits sustain as much less of their peak
        as their best products reach."""
        recipes, wide = narrow_products(), storage_precision(precision)
        if kernels.product_rates(precision) is None:
            faster = self.peak_flops[precision] / self.peak_flops[wide] * recipes.peak_share
            return self.speed(wide, kernels, max(1.0, faster))
        speed, operand_bytes = self.speed(precision, kernels), recipes.element_bytes[recipe]
        return speed._replace(kernels=with_peak_share(speed.kernels, recipes.peak_share), operand_bytes=operand_bytes)

    def weights_s(self, layer: Layer, samples: float, precision: Precision) -> float:
        """Seconds of the layer's backward pass that compute weight gradients, which no other layer waits for.

        They are the kernel model's share of the backward pass, whose time may be a measured one.
        """
        _, backward_s = self.layer_s(layer, samples, precision)
        if self.kernels is None or self.efficiency is not None:
            weighted = sum(
                o.forward_flops for o in layer.operators if isinstance(o, Matmul | Convolution) and o.weight_gradient
            )
            return backward_s * weighted / layer.backward_flops if layer.backward_flops else 0.0
        speed = self.speed(precision, self.kernels)
        _, modelled_s = passes_s(speed, layer.operators, layer.kept, samples)
        return backward_s * weights_s(speed, layer.operators, samples) / modelled_s if modelled_s else 0.0

    def operators_s(
        self, layer: Layer, operators: Sequence[Operator], samples: float, precision: Precision
    ) -> tuple[float, float]:
        """Seconds of some of a layer's operators in the forward and in the backward pass, by the model alone."""
        return self.layer_s(replace(layer, signature="", operators=tuple(operators), kept=()), samples, precision)

    def share_s(self, layer: Layer, operators: tuple[Operator, ...], samples: float, precision: Precision) -> float:
        """Seconds of some of a layer's operators in its forward pass.

        They are the kernel model's share of the forward pass, whose time may be a measured one.
        """
        if not operators:
            return 0.0
        forward_s, _ = self.layer_s(layer, samples, precision)
        if self.kernels is None or self.efficiency is not None:
            flops = sum(operator.forward_flops for operator in operators)
            return forward_s * flops / layer.forward_flops if flops else 0.0
        speed = self.speed(precision, self.kernels)
        # kept activations show whether there is dropout between softmax and values
        kept = layer.kept if any(isinstance(operator, Attention) for operator in operators) else ()
        part_s, _ = passes_s(speed, operators, kept, samples)
        modelled_s, _ = passes_s(speed, layer.operators, layer.kept, samples)
        return forward_s * part_s / modelled_s

    def _flat_s(self, flops: float, precision: Precision) -> float:
        efficiency = 1.0 if self.efficiency is None else self.efficiency
        return flops / (self.peak_flops[precision] * efficiency)

    def moved_s(self, size_bytes: float) -> float:
        """Seconds in which a memory-bound kernel reads and writes `size_bytes`."""
        share = 1.0 if self.kernels is None or self.efficiency is not None else self.kernels.memory_share
        return size_bytes / (self.memory_bandwidth_Bps * share)

    def measured_optimizer_s(self, parameters: Amount, optimizer: Optimizer, precision: Precision) -> Amount | None:
        """Measured seconds of one optimizer step; None if it was not measured."""
        for measured in self.measured_optimizers:
            if measured.optimizer == optimizer and measured.precision == precision:
                return measured.base_s + measured.per_parameter_s * parameters
        return None

    def optimizer_s(
        self, parameters: Amount, optimizer: Optimizer, precision: Precision,
        master: bool = True, bits: StateBits | None = None, ema: Precision | None = None,
    ) -> Amount:  # fmt: skip
        """Seconds of one optimizer step over `parameters` parameters: measured, otherwise bound by memory bandwidth.

        master: whether there are master weights, as in the measured steps. bits, ema: see `optimizer_bytes`.
        """
        measured = self.measured_optimizer_s(parameters, optimizer, precision) if (master, bits, ema) == _USUAL_STATES else None
        if measured is not None:
            return measured
        return optimizer_bytes(parameters, optimizer, precision, master, bits, ema) / self.memory_bandwidth_Bps


# States of measured optimizer steps: master weights, states in 32 bits, and no average of parameters.
_USUAL_STATES: Final = (True, None, None)
# Kernel parameters without which kernels cannot be timed, in YAML.
_NEEDED_KERNELS: Final = ("tile_share", "memory_share", "launch")
# Parameters that are fitted together: a device that states the first has no others from its generation.
_FITTED_TOGETHER: Final = ("tile_share", "burst", "flash_forward_share", "flash_backward_share")
# Parameters that are round assumptions in all generations.
_ASSUMED: Final = ("memory_share", "launch", "issue")
# Precisions of the products whose energy is known, the first that a device has.
_PRECISIONS: Final = ("bf16", "fp16", "fp32")


def with_generation_kernels(device: Any) -> Any:
    """The fields of a device as in YAML, with kernel parameters of its generation where it has too few to time kernels.

    Raises ValueError for an unknown generation, and if the power limit is needed and missing.
    """
    kernels = device.get("kernels") if isinstance(device, Mapping) else None
    if not isinstance(kernels, Mapping) or all(name in kernels or f"{name}_s" in kernels for name in _NEEDED_KERNELS):
        return device
    known = _generation_of(kernels)
    names = [*(() if "tile_share" in kernels else _FITTED_TOGETHER), *_ASSUMED]
    added = {name: known[name] for name in names if name in known and name not in kernels}
    if "tile_share" not in kernels and "sustained_share" not in kernels:
        added |= _sustained(device, known)
    unsure = {*_ASSUMED, *known.get("assumed", ())} & added.keys()
    assumed = [*device.get("assumed", ()), *(f"kernels.{name}" for name in added if name in unsure)]
    return {**device, "kernels": {**kernels, **added}, "assumed": assumed}


def kernels_deviation(state: State) -> float:
    """Standard deviation of the logarithm of a device's kernel times, by how its parameters are known."""
    return float(_kernels_data("states")[state])


def _generation_of(kernels: Mapping[str, Any]) -> Mapping[str, Any]:
    generations: Mapping[str, Mapping[str, Any]] = _kernels_data("generations")["generations"]
    given = kernels.get("generation")
    if not isinstance(given, str) or given not in generations:
        problem = "missing" if given is None else f"{given!r} is not known"
        raise ValueError(f"kernels.generation: {problem}; give one of {', '.join(generations)}")
    return generations[given]


def _sustained(device: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Share of the peak that the power limit sustains, by the generation's FLOP per joule; empty where neither is known."""
    if "flop_per_J" not in known:
        return {}
    limit = device.get("power_limit", device.get("power_limit_W"))
    if limit is None:
        message = "missing; it bounds what kernels sustain whose parameters come from the generation; add it, as in 700 W"
        raise ValueError(f"power_limit: {message}")
    peaks = device.get("peak", device.get("peak_flops"))
    peak = next((peaks[name] for name in _PRECISIONS if name in peaks), None) if isinstance(peaks, Mapping) else None
    try:
        limit_W = POWER.parse(limit) if isinstance(limit, str) else float(limit)
        peak_flops = COMPUTE_RATE.parse(peak) if isinstance(peak, str) else float(peak or 0)
    except (UnitError, TypeError):  # reported where the field is validated
        return {}
    if not limit_W or not peak_flops:
        return {}
    return {"sustained_share": known["flop_per_J"] * limit_W / peak_flops, "sustained_at": limit}


@functools.cache
def _kernels_data(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / f"{name}.yaml")
    return found
