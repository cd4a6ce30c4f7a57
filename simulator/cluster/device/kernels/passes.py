"""Seconds of the passes of consecutive operators on a device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from scaleproof.simulator.cluster.device.kernels.cpu_core import Work, backward_work, forward_work, weights_work
from scaleproof.simulator.cluster.device.kernels.operator_kernels import (
    MASK_BYTES,
    backward_kernels,
    dropout_s,
    forward_kernels,
)
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import seconds
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, SavedActivation


@functools.lru_cache(maxsize=4096)
def passes_s(
    speed: Speed, operators: tuple[Operator, ...], kept: tuple[SavedActivation, ...], samples: float
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass of consecutive operators over `samples` samples.

    kept: their saved activations; a mask of attention scores means that there is dropout between softmax and values. The host
    issues kernels while the device computes: the slower of the two determines the time.
    """
    if speed.kernels.serial is not None:
        return _serial_s(speed, forward_work(operators, samples)), _serial_s(speed, backward_work(operators, samples))
    dropped = sum(item.elements for item in kept if item.group == "attention" and item.element_bytes == MASK_BYTES)
    forward = [kernel for operator in operators for kernel in forward_kernels(operator, samples, speed)]
    backward = [kernel for operator in operators for kernel in backward_kernels(operator, samples, speed)]
    if dropped:
        forward.append(dropout_s(speed, dropped * samples))
        backward.append(dropout_s(speed, dropped * samples))
    both_s = seconds([*forward, *backward], speed)
    return _pass_s(both_s[: len(forward)], speed), _pass_s(both_s[len(forward) :], speed)


@functools.lru_cache(maxsize=4096)
def weights_s(speed: Speed, operators: tuple[Operator, ...], samples: float) -> float:
    """Seconds of the kernels that compute weight gradients: the last backward kernel of each operator with weights."""
    if speed.kernels.serial is not None:
        return _serial_s(speed, weights_work(operators, samples))
    weighted = (o for o in operators if isinstance(o, Matmul | Convolution) and o.weight_gradient)
    return sum(seconds([list(backward_kernels(operator, samples, speed))[-1] for operator in weighted], speed))


@functools.lru_cache(maxsize=4096)
def kernel_count(operators: tuple[Operator, ...]) -> tuple[int, int]:
    """Number of kernels of the operators in the forward and in the backward pass."""
    return (
        sum(
            1 if isinstance(o, MemoryBound | Convolution) or _is_flash(o) else len(o.forward(1)) + isinstance(o, Attention)
            for o in operators
        ),
        sum(
            1 if isinstance(o, MemoryBound) or _is_flash(o) else len(o.backward(1)) + isinstance(o, Attention)
            for o in operators
            if o.has_backward
        ),
    )


def _is_flash(operator: Operator) -> bool:
    return isinstance(operator, Attention) and operator.flash


def _serial_s(speed: Speed, work: Work) -> float:
    """Seconds of work on a CPU core, where all times add up."""
    kernels, peak_flops = speed.kernels, speed.peak_flops
    assert kernels.serial is not None
    forward, backward = kernels.flash_shares
    flash_flops = forward * peak_flops, backward * peak_flops
    element_s = speed.element_bytes / speed.reached_Bps
    each_s = kernels.serial.each_s(kernels.launch_s, kernels.tile_share * peak_flops, *flash_flops, element_s)
    return sum(each_s[name] * amount for name, amount in work.items())


def _pass_s(kernels_s: Sequence[float], speed: Speed) -> float:
    return max(speed.kernels.issue_s * len(kernels_s), sum(kernels_s))
