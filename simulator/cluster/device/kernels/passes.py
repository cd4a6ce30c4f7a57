"""Seconds of the passes of consecutive operators on a device."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from scaleproof.simulator.cluster.device.kernels.attention import flash_s
from scaleproof.simulator.cluster.device.kernels.cpu_core import Work, backward_work, forward_work, weights_work
from scaleproof.simulator.cluster.device.kernels.parameters import Speed, convolution_constants
from scaleproof.simulator.cluster.device.kernels.products import BatchedProduct, Kernel, seconds
from scaleproof.simulator.model.operators import (
    Attention,
    Convolution,
    Matmul,
    MemoryBound,
    Operator,
    Product,
    SavedActivation,
    Scan,
    WeightPass,
)
from scaleproof.simulator.model.recommender.lookups import Lookup

# Bytes of an element of a dropout mask.
MASK_BYTES: Final = 1
# Bytes of an element of 16 bits, in which cuDNN has depthwise convolutions.
_NARROW_BYTES: Final = 2


def _memory_s(speed: Speed, elements: float) -> float:
    return speed.kernels.launch_s + elements * speed.element_bytes / speed.reached_Bps


def _weight_pass_s(operator: WeightPass, speed: Speed) -> Sequence[float]:
    """Seconds of the kernels of a pass over weights."""
    return [_memory_s(speed, operator.moved / operator.kernels)] * operator.kernels


def dropout_s(speed: Speed, elements: float) -> float:
    """Seconds of dropout, which reads and writes each element and a mask."""
    return _memory_s(speed, elements * (2 + MASK_BYTES / speed.element_bytes))


def forward_kernels(operator: Operator, samples: float, speed: Speed) -> Iterator[Kernel]:
    """Kernels of an operator's forward pass."""
    if isinstance(operator, WeightPass):
        yield from _weight_pass_s(operator, speed)
    elif isinstance(operator, Lookup):
        yield _memory_s(speed, operator.forward_bytes(samples, speed.element_bytes) / speed.element_bytes)
    elif isinstance(operator, MemoryBound):
        yield _memory_s(speed, (operator.read + operator.written) * samples)
    elif isinstance(operator, Convolution):
        yield from _convolution_s(operator, samples, speed, operator.forward(samples), ("input weights output",))
    elif isinstance(operator, Attention) and operator.flash:
        yield flash_s(operator, samples, speed)
    else:
        loads = operator.loads if isinstance(operator, Matmul) else ()
        yield from (BatchedProduct.from_product(product, loads) for product in operator.forward(samples))
        if isinstance(operator, Attention | Scan):
            yield _memory_s(speed, operator.between[0] * samples)


def backward_kernels(operator: Operator, samples: float, speed: Speed) -> Iterator[Kernel]:
    """Kernels of an operator's backward pass, that of the weight gradients last. None if it needs no gradients."""
    if not operator.has_backward:
        return
    if isinstance(operator, WeightPass):
        yield from _weight_pass_s(operator, speed)
    elif isinstance(operator, Lookup):
        yield _memory_s(speed, operator.backward_bytes(samples, speed.element_bytes) / speed.element_bytes)
    elif isinstance(operator, MemoryBound):
        yield _memory_s(speed, operator.backward_moved * samples)
    elif isinstance(operator, Convolution):
        gradients = (operator.input_gradient, "output weights input"), (operator.weight_gradient, "input output weights")
        tensors = [names for is_needed, names in gradients if is_needed]
        yield from _convolution_s(operator, samples, speed, operator.backward(samples), tensors)
    elif isinstance(operator, Attention) and operator.flash:
        yield flash_s(operator, samples, speed, backward=True)
    elif isinstance(operator, Matmul):
        for number, product in enumerate(operator.backward(samples)):
            # the inner dimension of the weight gradients' product is the rows of the forward product
            yield BatchedProduct.from_product(product, operator.loads, inner=number >= operator.input_gradient)
    else:
        yield from map(BatchedProduct.from_product, operator.backward(samples))
        yield _memory_s(speed, operator.between[1] * samples)


def _convolution_s(
    operator: Convolution, samples: float, speed: Speed, products: Iterable[Product], tensors: Sequence[str]
) -> Iterator[Kernel]:
    """Kernels of a convolution's products. tensors: for each product the names of the two tensors that it reads and of the one
    that it writes. Each value is read once, even if it is in several windows.

    In 32 bits libraries take the faster of direct products and Winograd's. One kernel transforms and multiplies (cuDNN's
    `winograd_128x128`, as profiles of V100 name it); gradients of weights have a kernel for each transform alone
    (`winograd_nonfused::winogradWgradData4x4`).
    """
    elements = {
        "input": operator.input_elements * samples,
        "output": operator.positions * operator.outputs * samples,
        "weights": float(operator.weights),
    }
    is_transformed = speed.winograd and _is_dense_3x3(operator)
    direct_s = _direct_s(operator, speed)
    for product, names in zip(products, tensors, strict=True):
        left, right, written = (elements[name] for name in names.split())
        kernel = BatchedProduct(product, left + right, written)
        if is_transformed and names.endswith(" weights"):
            yield min(*seconds([kernel], speed), _weights_by_winograd_s(operator, samples, speed))
        elif is_transformed:
            yield min(seconds([kernel, BatchedProduct(_winograd(operator, samples, names), left + right, written)], speed))
        elif direct_s is None:
            yield kernel
        else:
            moved_s = _memory_s(speed, left + right + written)
            yield min(moved_s + direct_s * samples, *seconds([kernel], speed))


def _direct_s(operator: Convolution, speed: Speed) -> float | None:
    """Seconds of arithmetic per sample of a grouped convolution that threads compute output by output; None without groups."""
    if operator.groups == 1 or not speed.direct_flops:
        return None
    widest = convolution_constants()["depthwise_kernel"]
    is_depthwise = operator.groups == operator.inputs and speed.element_bytes == _NARROW_BYTES
    if is_depthwise and max(operator.kernel) <= widest:
        return 0.0
    return operator.forward_flops / speed.direct_flops


def _is_dense_3x3(operator: Convolution) -> bool:
    """Whether a convolution is 3 × 3 with stride 1 and without groups. Without padding, sides of its input are longer by 2."""
    most = (math.sqrt(operator.positions) + 2) ** 2
    return operator.kernel == (3, 3) and operator.groups == 1 and operator.input_elements <= operator.inputs * most * 1.01


def _winograd(operator: Convolution, samples: float, tensors: str) -> Product:
    """The products of F(2 × 2, 3 × 3), 16 for each tile of four outputs (arXiv 1509.09308, section 4.1), of a pass by the names
    of the tensors that it reads and writes."""
    sizes = {"input": operator.inputs, "output": operator.outputs}
    read, _, written = tensors.split()
    return Product(math.ceil(operator.positions * samples / 4), sizes[written], sizes[read], 16)


def _weights_by_winograd_s(operator: Convolution, samples: float, speed: Speed) -> float:
    """Seconds of gradients of weights by F(3 × 3, 4 × 4): 36 products for each tile of 16 positions, after a kernel for each
    tensor that reads it and writes the values that products read."""
    values, positions = 36, 16
    tiles = math.ceil(operator.positions * samples / positions)
    (multiplied_s,) = seconds([BatchedProduct.from_product(Product(operator.inputs, operator.outputs, tiles, values))], speed)
    read = (operator.input_elements + operator.positions * operator.outputs) * samples
    return multiplied_s + speed.kernels.launch_s + _memory_s(speed, read * (1 + values / positions))


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
    return sum(_kernels(o, False) for o in operators), sum(_kernels(o, True) for o in operators if o.has_backward)


def _kernels(operator: Operator, backward: bool) -> int:
    """Kernels of an operator in one of the passes."""
    if isinstance(operator, WeightPass):
        return operator.kernels
    if isinstance(operator, MemoryBound) or _is_flash(operator) or (isinstance(operator, Convolution) and not backward):
        return 1
    return len(operator.backward(1) if backward else operator.forward(1)) + isinstance(operator, Attention | Scan)


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
