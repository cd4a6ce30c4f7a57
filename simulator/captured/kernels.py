"""Seconds of recorded operators on a device as a framework drives it, and how each time is known."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

import yaml

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.cpu_core import backward_work, forward_work
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.passes import backward_kernels, forward_kernels
from scaleproof.simulator.cluster.device.kernels.products import BatchedProduct, Kernel, seconds
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.frameworks.execution import framework_kernels
from scaleproof.simulator.model.operators import Matmul, MemoryBound
from scaleproof.simulator.model.torch_operators import Work

# Precisions that stand in for one that a device has no peak rate for, the best first.
_INSTEAD: Final[Mapping[str, tuple[Precision, ...]]] = {
    "bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "tf32": ("fp32",), "fp32": ("tf32",), "fp64": ("fp32",),
    "fp8": ("bf16", "fp16", "fp32"),
}  # fmt: skip
# Precision of products of tensors of each type.
PRECISIONS: Final[Mapping[str, Precision]] = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip

# Bytes per second that copies between host and device read and write, both ends counted: twice what PCIe 4.0 with a width
# of 16 moves in practice, a round assumption.
HOST_Bps: Final = 50e9


class Certainty(IntEnum):
    """How the time of an operator is known: from measured kernels of similar shapes, from the model of kernels outside of what
    was measured, or by bandwidth alone, since the operator is not modelled."""

    MEASURED = 0
    EXTRAPOLATED = 1
    UNKNOWN = 2


class KernelTime(NamedTuple):
    """Seconds of an operator, how they are known, and whether memory bandwidth bounds them."""

    seconds: float
    known: Certainty
    moves: bool


_FREE: Final = KernelTime(0.0, Certainty.MEASURED, True)


class KernelTimes:
    """Times of operators on a device. Raises FieldError for a precision that the device has no peak rate for."""

    def __init__(self, device: Device, framework: Framework) -> None:
        self._device, self._framework = device, framework
        kernels = device.kernels
        self._is_flat = kernels is None or device.efficiency is not None
        self._is_serial = kernels is not None and kernels.serial is not None
        self._is_gpu = kernels is not None and kernels.generation != "cpu" and not self._is_flat
        if self._is_gpu:
            assert kernels is not None
            self._kernels = framework_kernels(kernels, framework.flash(kernels.generation))
        else:
            self._kernels = cast(Any, kernels)
        self._ranges = measured_ranges().get(device.name, {})

    @property
    def device(self) -> str:
        """The device's name."""
        return self._device.name

    @property
    def launch_host_s(self) -> float:
        """Seconds of the host per kernel; zero where the host itself computes."""
        if self._is_gpu:
            return self._framework.host_scale * self._kernels.host_slowdown * self._framework.host.kernel_s
        return 0.0 if self._is_serial or self._is_flat else float(self._kernels.issue_s)

    @property
    def collective_host_s(self) -> float:
        """Seconds of the host per collective."""
        if not self._is_gpu:
            return 0.0
        return self._framework.host_scale * self._kernels.host_slowdown * self._framework.host.collective_s

    @property
    def blocks_host(self) -> bool:
        """Whether the host waits for each kernel."""
        return not self._is_gpu or self._framework.host.blocking

    def times(self, works: Sequence[tuple[Work, str]]) -> list[KernelTime]:
        """Times of operators, each with the precision of its products, such as 'bf16'."""
        by_precision: dict[str, list[int]] = {}
        for place, (_, precision) in enumerate(works):
            by_precision.setdefault(precision, []).append(place)
        result = [_FREE] * len(works)
        for precision, places in by_precision.items():
            own = [works[place][0] for place in places]
            times = self._of_precision(own, precision)
            for place, time in zip(places, times, strict=True):
                result[place] = time
        return result

    def _of_precision(self, works: Sequence[Work], precision: str) -> list[KernelTime]:
        if self._is_flat:
            spent_s = [self._flat_s(work, precision) for work in works]
        elif self._is_serial:
            spent_s = [self._serial_s(work, precision) for work in works]
        else:
            spent_s = self._kernels_s(works, precision)
        return [
            KernelTime(one_s, self.known(work, precision), not (work.products or work.attention or work.convolution))
            if work.launches
            else _FREE
            for work, one_s in zip(works, spent_s, strict=True)
        ]

    def known(self, work: Work, precision: str) -> Certainty:
        """How the time of an operator is known."""
        kind = f"products {'bf16' if precision == 'fp16' else precision}"
        if work.boundness == "unknown":
            return Certainty.UNKNOWN
        if self._device.kernels_state == "measured" and not self._is_gpu:
            return Certainty.MEASURED
        if work.products and all(
            _within(self._ranges.get(kind), {"m": one.m, "n": one.n, "k": one.k}) for one in work.products
        ):
            return Certainty.MEASURED
        if work.attention is not None and not work.backward and precision in ("bf16", "fp16"):
            sizes = {"queries": work.attention.queries, "keys": work.attention.keys, "width": work.attention.width}
            if _within(self._ranges.get("attention"), sizes):
                return Certainty.MEASURED
        return Certainty.EXTRAPOLATED

    def _kernels_s(self, works: Sequence[Work], precision: str) -> list[float]:
        """Seconds by the model of kernels. All products are timed in one call."""
        speed = self._speed(precision)
        kernels = [list(self._kernels_of(work, speed)) for work in works]
        narrow = [index for index, work in enumerate(works) if work.narrow and precision == "fp8"]
        spent = iter(seconds([kernel for own in kernels for kernel in own], speed))
        result = [sum(next(spent) for _ in own) for own in kernels]
        if narrow:
            fast = self._device.narrow_speed("fp8", self._kernels, "delayed")
            for index in narrow:
                result[index] = sum(seconds(kernels[index], fast))
        return [self._framework.kernel_scale * one_s for one_s in result]

    def _kernels_of(self, work: Work, speed: Speed) -> Iterable[Kernel]:
        if work.products:
            return (BatchedProduct.from_product(product) for product in work.products)
        operator = work.attention or work.convolution
        if operator is not None:
            return (
                backward_kernels(operator, work.samples, speed)
                if work.backward
                else forward_kernels(operator, work.samples, speed)
            )
        reached_Bps = HOST_Bps if work.crosses else speed.reached_Bps
        return (speed.kernels.launch_s + work.moved_bytes / reached_Bps,) if work.launches else ()

    def _flat_s(self, work: Work, precision: str) -> float:
        """Seconds at the share of the peak that the device reaches in all products, and at its memory bandwidth otherwise."""
        if not work.flops:
            return self._device.moved_s(work.moved_bytes) if work.launches else 0.0
        return work.flops / (self._device.peak_flops[self._peak(precision)] * (self._device.efficiency or 1.0))

    def _serial_s(self, work: Work, precision: str) -> float:
        """Seconds on a processor core, where calls, FLOPs and bytes add up."""
        if not work.launches:
            return 0.0
        speed = self._speed(precision)
        serial, launch_s, peak_flops = self._kernels.serial, self._kernels.launch_s, speed.peak_flops
        assert serial is not None
        forward, backward = self._kernels.flash_shares
        each_s = serial.each_s(
            launch_s, self._kernels.tile_share * peak_flops, forward * peak_flops, backward * peak_flops,
            speed.element_bytes / speed.reached_Bps,
        )  # fmt: skip
        operator = work.attention or work.convolution
        if operator is not None:
            done = (backward_work if work.backward else forward_work)([operator], work.samples)
        elif work.products:
            done = forward_work([Matmul("product", m, n, k, batch) for m, n, k, batch in work.products], 1)
        else:
            elements = round(work.moved_bytes / speed.element_bytes)
            done = forward_work([MemoryBound("other", elements, 0, 0, 0)], 1)
        return float(sum(each_s[name] * amount for name, amount in done.items()))

    @functools.cache  # noqa: B019 - lives as long as one compilation
    def _speed(self, precision: str) -> Speed:
        return self._device.speed(self._peak(precision), self._kernels)

    def _peak(self, precision: str) -> Precision:
        """The precision whose peak rate applies. Raises FieldError."""
        for one in (cast(Precision, precision), *_INSTEAD.get(precision, ())):
            if one in self._device.peak_flops:
                return one
        raise FieldError(("cluster", "device", "peak"), f"{self._device.name} has no rate for {precision}; add one")


def _within(ranges: Mapping[str, Sequence[int]] | None, sizes: Mapping[str, int]) -> bool:
    """Whether all sizes are within the measured ones."""
    return ranges is not None and all(low <= sizes[name] <= high for name, (low, high) in ranges.items())


@functools.cache
def measured_ranges() -> Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]:
    """Smallest and largest sizes of measured kernels by name of device and kind of kernel."""
    text = (catalog.ROOT / "kernels" / "measured_ranges.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]] = yaml.safe_load(text)["ranges"]
    return found
