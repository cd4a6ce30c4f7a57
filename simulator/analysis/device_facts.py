"""Facts on a device as rows of text: peaks, memory, power and rates of kernels, each with how it is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scaleproof.simulator.analysis.device_rates import RateLine, attentions, implementations, squares
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_change,
    format_count,
    format_percent,
    format_range,
    format_time_s,
)


@dataclass(frozen=True)
class Fact:
    """A property of a device with its value. origin: measured, data sheet or assumed."""

    what: str
    value: str
    origin: str


class DeviceRecord(Record):
    """What is known of a device: its facts, and rates of matrix products and attention."""

    name: str
    description: str
    facts: tuple[Fact, ...]
    products: tuple[RateLine, ...]
    attention: tuple[RateLine, ...]
    source: str


def record_of(device: Device) -> DeviceRecord:
    """What is known of a device."""
    return DeviceRecord(
        name=device.name,
        description=device.description,
        facts=tuple(facts(device)),
        products=tuple(squares(device)),
        attention=tuple(attentions(device)),
        source=device.source,
    )


def facts(device: Device) -> list[Fact]:
    """Facts on a device, the most important ones first."""
    found = [*_sheet(device)]
    if device.kernels is not None and device.efficiency is None:
        found += [*_rates(device, device.kernels), *_flat(device, device.kernels)]
    if device.measured_layers:
        found.append(Fact("layers", counted(len(device.measured_layers), "kind"), "measured"))
    if device.measured_optimizers:
        found.append(Fact("optimizer steps", counted(len(device.measured_optimizers), "kind"), "measured"))
    return found


def peaks(device: Device) -> list[tuple[list[str], float]]:
    """The peak rates of a device in FLOP/s with their precisions, the fastest first."""
    by_rate: dict[float, list[str]] = {}
    for name, rate in device.peak_flops.items():
        by_rate.setdefault(rate, []).append(name)
    return [(by_rate[rate], rate) for rate in sorted(by_rate, reverse=True)]


def _sheet(device: Device) -> Iterator[Fact]:
    for precisions, rate in peaks(device):
        yield Fact(f"peak {', '.join(precisions)}", f"{format_count(rate)}FLOP/s", device.state_of("peak"))
    yield Fact("memory", format_bytes(device.memory_bytes), device.state_of("memory"))
    if device.usable_memory_bytes is not None:
        yield Fact("usable memory", format_bytes(device.usable_memory_bytes), device.state_of("usable_memory"))
    yield Fact("memory bandwidth", f"{format_count(device.memory_bandwidth_Bps)}B/s", device.state_of("memory_bandwidth"))
    if device.power_limit_W is not None:
        yield Fact("power limit", f"{device.power_limit_W:g} W", device.state_of("power_limit"))
    if device.l2_bytes is not None:
        yield Fact("L2 cache", format_bytes(device.l2_bytes), device.state_of("l2"))
    if device.clock_Hz is not None:
        yield Fact("highest clock", f"{format_count(device.clock_Hz)}Hz", device.state_of("clock"))
    if device.kernels is not None:
        processors = f"{device.kernels.processors}, {device.kernels.generation}"
        yield Fact("processors", processors, device.state_of("kernels.processors"))
    if device.efficiency is not None:
        yield Fact("share of the peak", format_percent(device.efficiency), device.state_of("efficiency"))


def _rates(device: Device, kernels: Kernels) -> Iterator[Fact]:
    """Rates of matrix products and attention, with the 90 % intervals of those that are fitted."""
    known = {name: device.speed(name, kernels, burst=True).products for name in device.peak_flops}
    for precision, rates in known.items():
        # products in fp16 have the rates of those in bf16
        if rates is not None and (precision != "fp16" or "bf16" not in known):
            yield Fact(f"matrix products {precision}", _interval(rates.log_error), rates.state)
    if None in known.values():
        what = "matrix products" if not any(known.values()) else "other matrix products"
        tiles = f"tiles reach {format_percent(kernels.tile_share)} of the peak"
        yield Fact(what, tiles, device.state_of("kernels.tile_share"))
    limited = f"{format_percent(kernels.sustained_share)} of the peak"
    yield Fact("power limit sustains", limited, device.state_of("kernels.sustained_share"))
    if kernels.exponential_gain != 1:
        gain = f"{kernels.exponential_gain:g} times the rate of others of {kernels.generation}"
        yield Fact("exponentials", gain, device.state_of("kernels.exponential_gain"))
    for name, mixtures in kernels.mixtures.items():
        yield Fact(f"mixtures of experts {name}", _interval(mixtures.log_error), mixtures.state)
    if kernels.flash_forward_share is not None:
        shares = [format_percent(share) for share in kernels.flash_shares]
        value = f"{shares[0]} of the peak forward, {shares[1]} backward"
        yield Fact("flash attention", value, device.state_of("kernels.flash_forward_share"))
        return
    by_name = implementations(kernels)
    for name, implementation in by_name.items():
        yield Fact(f"attention {name}", _interval(implementation.log_error), implementation.state)
    if kernels.attention:
        first, others = next(iter(kernels.attention)), by_name.keys() - kernels.attention.keys()
        reason = f"as on other devices of {kernels.generation}" if others else f"as {first}: no rates of {kernels.generation}"
        yield Fact("other attention", f"{reason}, since it was not measured", "data sheet" if others else "assumed")


def _flat(device: Device, kernels: Kernels) -> Iterator[Fact]:
    moved = f"{format_percent(kernels.memory_share)} of the bandwidth"
    yield Fact("memory-bound kernels", moved, device.state_of("kernels.memory_share"))
    yield Fact("launch of a kernel", format_time_s(kernels.launch_s), device.state_of("kernels.launch"))
    yield Fact("issue of a kernel", format_time_s(kernels.issue_s), device.state_of("kernels.issue"))


def _interval(log_error: tuple[float, float]) -> str:
    """How far 90 % of times are from their predictions."""
    low, high = (format_change(math.expm1(end)) for end in log_error)
    return f"90 % of times within {format_range(low, high)} of the prediction"
