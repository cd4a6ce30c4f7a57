"""Kernels of each operator in the forward and in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from scaleproof.simulator.cluster.device.kernels.attention import flash_s
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import BatchedProduct, Kernel
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, Product

# Bytes of an element of a dropout mask.
MASK_BYTES: Final = 1
# Elements that a fused softmax of attention reads and writes per score in the forward and the backward pass, where it reads its
# output and the gradient of its output.
SOFTMAX_ACCESSES: Final = (2, 3)


def _memory_s(speed: Speed, elements: float) -> float:
    return speed.kernels.launch_s + elements * speed.element_bytes / speed.reached_Bps


def dropout_s(speed: Speed, elements: float) -> float:
    """Seconds of dropout, which reads and writes each element and a mask."""
    return _memory_s(speed, elements * (2 + MASK_BYTES / speed.element_bytes))


def forward_kernels(operator: Operator, samples: float, speed: Speed) -> Iterator[Kernel]:
    """Kernels of an operator's forward pass."""
    if isinstance(operator, MemoryBound):
        yield _memory_s(speed, (operator.read + operator.written) * samples)
    elif isinstance(operator, Convolution):
        yield from _convolution_s(operator, samples, speed, operator.forward(samples), ("input weights output",))
    elif isinstance(operator, Attention) and operator.flash:
        yield flash_s(operator, samples, speed)
    else:
        loads = operator.loads if isinstance(operator, Matmul) else ()
        yield from (BatchedProduct.of(product)._replace(loads=loads) for product in operator.forward(samples))
        if isinstance(operator, Attention):
            yield _memory_s(speed, SOFTMAX_ACCESSES[0] * operator.scores * samples)


def backward_kernels(operator: Operator, samples: float, speed: Speed) -> Iterator[Kernel]:
    """Kernels of an operator's backward pass, that of the weight gradients last. None if it needs no gradients."""
    if not operator.has_backward:
        return
    if isinstance(operator, MemoryBound):
        yield _memory_s(speed, (operator.backward_read + operator.backward_written) * samples)
    elif isinstance(operator, Convolution):
        gradients = (operator.input_gradient, "output weights input"), (operator.weight_gradient, "input output weights")
        tensors = [names for is_needed, names in gradients if is_needed]
        yield from _convolution_s(operator, samples, speed, operator.backward(samples), tensors)
    elif isinstance(operator, Attention) and operator.flash:
        yield flash_s(operator, samples, speed, backward=True)
    elif isinstance(operator, Matmul):
        products = [BatchedProduct.of(product)._replace(loads=operator.loads) for product in operator.backward(samples)]
        yield from products[: operator.input_gradient]
        # the inner dimension of the weight gradients' product is the rows of the forward product
        yield from (product._replace(inner=True) for product in products[operator.input_gradient :])
    else:
        yield from map(BatchedProduct.of, operator.backward(samples))
        yield _memory_s(speed, SOFTMAX_ACCESSES[1] * operator.scores * samples)


def _convolution_s(
    operator: Convolution, samples: float, speed: Speed, products: Iterable[Product], tensors: Sequence[str]
) -> Iterator[Kernel]:
    """Kernels of a convolution's products. tensors: for each product the names of the two tensors that it reads and of the one
    that it writes. Each value is read once, even if it is in several windows."""
    elements = {
        "input": operator.input_elements * samples,
        "output": operator.positions * operator.outputs * samples,
        "weights": float(operator.weights),
    }
    if speed.winograd and _is_dense_3x3(operator):
        transformed = _winograd(operator, samples)
        products = [transformed[names] for names in tensors]
    for product, names in zip(products, tensors, strict=True):
        left, right, written = (elements[name] for name in names.split())
        yield BatchedProduct(product, left + right, written)


def _is_dense_3x3(operator: Convolution) -> bool:
    """Whether a convolution is 3 × 3 with stride 1 and without groups."""
    return (
        operator.kernel == (3, 3) and operator.groups == 1 and operator.input_elements == operator.inputs * operator.positions
    )


def _winograd(operator: Convolution, samples: float) -> dict[str, Product]:
    """The products of F(2 × 2, 3 × 3), 16 for each tile of four outputs (arXiv 1509.09308, section 4.1), by their tensors."""
    tiles = math.ceil(operator.positions * samples / 4)
    return {
        "input weights output": Product(tiles, operator.outputs, operator.inputs, 16),
        "output weights input": Product(tiles, operator.inputs, operator.outputs, 16),
        "input output weights": Product(operator.inputs, operator.outputs, tiles, 16),
    }
