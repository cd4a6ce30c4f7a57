"""Facts on a device as rows of text: peaks, memory, power and parameters of kernels, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels import Kernels
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_count,
    format_percent,
    format_time_s,
)

DATA_SHEET: Final = "data sheet"
MEASURED: Final = "measured"
ASSUMED: Final = "assumed"
# Where a parameter comes from that only the device's text on its sources says.
SEE_SOURCE: Final = "see source"


class Fact(NamedTuple):
    """A property of a device with its value. origin: measured, data sheet, assumed, or see source."""

    what: str
    value: str
    origin: str

    def plain(self) -> dict[str, Any]:
        """The fact as data for JSON."""
        return self._asdict()


def facts(device: Device) -> list[Fact]:
    """Facts on a device, the most important ones first."""
    return [*_sheet(device), *_kernels(device)]


def _sheet(device: Device) -> Iterator[Fact]:
    for precisions, rate in _peaks(device):
        yield Fact(f"peak {', '.join(precisions)}", f"{format_count(rate)}FLOP/s", DATA_SHEET)
    yield Fact("memory", format_bytes(device.memory_bytes), DATA_SHEET)
    if device.usable_memory_bytes is not None:
        yield Fact("usable memory", format_bytes(device.usable_memory_bytes), SEE_SOURCE)
    yield Fact("memory bandwidth", f"{format_count(device.memory_bandwidth_Bps)}B/s", DATA_SHEET)
    if device.power_limit_W is not None:
        yield Fact("power limit", f"{device.power_limit_W:g} W", DATA_SHEET)
    if device.efficiency is not None:
        yield Fact("share of the peak", format_percent(device.efficiency), SEE_SOURCE)


def _peaks(device: Device) -> Iterator[tuple[list[str], float]]:
    """Precisions of each peak rate, the fastest first."""
    by_rate: dict[float, list[str]] = {}
    for name, rate in device.peak_flops.items():
        by_rate.setdefault(rate, []).append(name)
    yield from ((by_rate[rate], rate) for rate in sorted(by_rate, reverse=True))


def _kernels(device: Device) -> Iterator[Fact]:
    kernels = device.kernels
    if kernels is None or device.efficiency is not None:
        return
    yield Fact("processors", f"{kernels.processors}, {kernels.generation}", DATA_SHEET)
    yield from _rates(kernels)
    yield Fact("memory-bound kernels", f"{format_percent(kernels.memory_share)} of the bandwidth", SEE_SOURCE)
    yield Fact("launch of a kernel", format_time_s(kernels.launch_s), SEE_SOURCE)
    yield Fact("issue of a kernel", format_time_s(kernels.issue_s), SEE_SOURCE)
    if device.measured_layers:
        yield Fact("layers", counted(len(device.measured_layers), "kind"), MEASURED)
    if device.measured_optimizers:
        yield Fact("optimizer steps", counted(len(device.measured_optimizers), "kind"), MEASURED)


def _rates(kernels: Kernels) -> Iterator[Fact]:
    yield Fact("matrix products", f"tiles reach {format_percent(kernels.tile_share)} of the peak", SEE_SOURCE)
    yield Fact("power limit sustains", f"{format_percent(kernels.sustained_share)} of the peak", SEE_SOURCE)
    shares = [format_percent(share) for share in kernels.flash_shares]
    origin = ASSUMED if kernels.flash_forward_share is None else SEE_SOURCE
    yield Fact("flash attention", f"{shares[0]} of the peak forward, {shares[1]} backward", origin)
