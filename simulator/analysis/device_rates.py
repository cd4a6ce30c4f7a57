"""Rates that single kernels of a device reach: matrix products and causal flash attention, by size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.device.device import Device, Precision, is_narrow
from scaleproof.simulator.cluster.device.kernels.attention import AttentionRates, running, shipped_attention_rates
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels
from scaleproof.simulator.cluster.device.kernels.passes import forward_kernels, passes_s
from scaleproof.simulator.cluster.device.kernels.products import seconds
from scaleproof.simulator.model.operators import Attention, Matmul, Operator

# 5th and 95th percentile of the logarithm of measured over predicted time where no rates are known: assumptions.
UNMEASURED: Final = (-0.4, 0.4)
# Sides of square products, and lengths of sequences, whose rates are shown.
SIDES: Final = (512, 1024, 2048, 4096, 8192, 16384)
LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16384)
# Attention that is shown: tokens of all sequences together, heads, and their width.
TOKENS: Final = 16384
HEADS: Final = 32
WIDTH: Final = 128


@dataclass(frozen=True)
class Rate:
    """FLOP/s that a kernel reaches, in a short burst at high clocks with its 90 % interval, and sustained under the power
    limit. size: of the kernel, such as the side of a product."""

    size: float
    burst: float
    low: float
    high: float
    sustained: float


@dataclass(frozen=True)
class RateLine:
    """Rates of a kernel by its size. precision: of its operands. peak_flops: FLOP/s of the device in that precision."""

    name: str
    precision: Precision
    peak_flops: float
    rates: tuple[Rate, ...]


# A size of a kernel, or its FLOPs per byte of memory traffic, and FLOP/s.
RatePoint = tuple[float, float]


class RateSeries(NamedTuple):
    """Predicted rates in FLOP/s by size, in a short burst, with the ends of their 90 % intervals; and measured ones."""

    name: str
    precision: Precision
    sizes: tuple[float, ...]
    rates_flops: tuple[float, ...]
    low_flops: tuple[float, ...]
    high_flops: tuple[float, ...]
    measured: tuple[RatePoint, ...]


class IntensitySeries(NamedTuple):
    """Measured rates of kernels of one kind and precision by FLOPs per byte of memory traffic."""

    name: str
    points: tuple[RatePoint, ...]


def product_line(device: Device, precision: Precision, name: str, shapes: Iterable[tuple[float, int, int, int]]) -> RateLine:
    """Rates of matrix products. shapes: size, m, n and k of each."""
    rates = [_rate(device, precision, size, Matmul("product", m, n, k), 1.0, 2.0 * m * n * k) for size, m, n, k in shapes]
    return RateLine(name, precision, device.peak_flops[precision], tuple(rates))


def squares(device: Device, sides: Sequence[int] = SIDES) -> list[RateLine]:
    """Rates of square matrix products in each precision of the device."""
    return [product_line(device, name, name, [(side, side, side, side) for side in sides]) for name in device.peak_flops]


def attention_line(
    device: Device, precision: Precision, name: str, shapes: Iterable[tuple[int, int, int, int, int]]
) -> RateLine:
    """Rates of forward passes of causal flash attention, by the length of a sequence, counting the scores that the mask leaves.
    shapes: sequences, tokens of each, heads, key heads and width of each."""
    rates = []
    for sequences, tokens, heads, key_heads, width in shapes:
        operator = Attention("attention", heads, key_heads, tokens, tokens, width, width, flash=True)
        flops = operator.forward_flops * operator.seen * sequences
        rates.append(_rate(device, precision, tokens, operator, sequences, flops))
    return RateLine(name, precision, device.peak_flops[precision], tuple(rates))


def attentions(device: Device, lengths: Sequence[int] = LENGTHS) -> list[RateLine]:
    """Rates of causal attention over `TOKENS` tokens in 16 bits, of each implementation; none without such a precision."""
    precision = sixteen_bits(device)
    if precision is None:
        return []
    shapes = [(max(1, TOKENS // tokens), tokens, HEADS, HEADS, WIDTH) for tokens in lengths]
    named = implementations(device.kernels) if device.kernels is not None else {}
    if not named:
        return [attention_line(device, precision, "flash attention", shapes)]
    return [attention_line(running_only(device, name), precision, name, shapes) for name in named]


def implementations(kernels: Kernels) -> dict[str, AttentionRates]:
    """Rates of implementations of flash attention by name: the device's own, and those of its generation; none if the device
    states shares of its peak instead."""
    if kernels.flash_forward_share is not None:
        return {}
    shipped = [name for name, of in shipped_attention_rates().items() if kernels.generation in of]
    return {name: rates for name in (*shipped, *kernels.attention) if (rates := kernels.attention_rates(name)) is not None}


def running_only(device: Device, name: str) -> Device:
    """The device that runs one implementation of attention."""
    assert device.kernels is not None
    kernels = device.kernels.model_copy(update={"attention": {name: implementations(device.kernels)[name]}})
    return device.model_copy(update={"kernels": kernels})


def sixteen_bits(device: Device) -> Precision | None:
    """bf16 or fp16, as the device has them; None if it has neither."""
    names: tuple[Precision, ...] = ("bf16", "fp16")
    return next((name for name in names if name in device.peak_flops), None)


def _rate(device: Device, precision: Precision, size: float, operator: Operator, samples: float, flops: float) -> Rate:
    burst_s, sustained_s = (_kernel_s(device, precision, operator, samples, burst) for burst in (True, False))
    low, high = attention_error(device) if isinstance(operator, Attention) else product_error(device, precision)
    return Rate(size, flops / burst_s, flops / burst_s * math.exp(-high), flops / burst_s * math.exp(-low), flops / sustained_s)


def _kernel_s(device: Device, precision: Precision, operator: Operator, samples: float, burst: bool) -> float:
    """Seconds of the kernels of an operator's forward pass, without the host's work."""
    kernels = device.kernels
    if kernels is None or device.efficiency is not None:
        return operator.forward_flops * samples / (device.peak_flops[precision] * (device.efficiency or 1.0))
    if is_narrow(precision) and not burst and {"bf16", precision} <= device.peak_flops.keys():
        speed = device.narrow_speed(precision, kernels, "mxfp4" if precision == "fp4" else "delayed")
    else:
        speed = device.speed(precision, kernels, burst=burst)
    if kernels.serial is not None:
        return passes_s(speed, (operator,), (), samples)[0]
    return sum(seconds(forward_kernels(operator, samples, speed), speed))


def product_error(device: Device, precision: Precision) -> tuple[float, float]:
    """5th and 95th percentile of the logarithm of measured over predicted time of matrix products."""
    rates = device.speed(precision, device.kernels, burst=True).products if device.kernels is not None else None
    return UNMEASURED if rates is None else rates.log_error


def attention_error(device: Device) -> tuple[float, float]:
    """5th and 95th percentile of the logarithm of measured over predicted time of flash attention."""
    rates = running(device.kernels) if device.kernels is not None else None
    return UNMEASURED if rates is None else rates.log_error
