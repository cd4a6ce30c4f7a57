"""What layers take on a processor's core, which hides nothing under anything else: calls, arithmetic and bytes add up.

Frameworks call one operator after another, and the caches of a core hold little of what the one before has left: what an
operator takes is what its calls, its FLOPs and its bytes take, each for itself. So times are linear in a few numbers of the
device, which `scaleproof calibrate` fits to layers that it has timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, Product

CALLS: Final = "calls"
BACKWARD_CALLS: Final = "backward calls"
MEMORY_CALLS: Final = "memory calls"
MEMORY_BACKWARD_CALLS: Final = "memory backward calls"
ATTENTION_CALLS: Final = "attention calls"
FLOPS: Final = "flops"
FLASH_FORWARD_FLOPS: Final = "flash forward flops"
FLASH_BACKWARD_FLOPS: Final = "flash backward flops"
# Kinds of operators by what they move, each a field of Serial; what is none of them counts as `other`. Libraries pack factors
# of a product, so that they can be read in order, but not those of a matrix and a vector.
KINDS: Final = ("product", "packed", "norm", "gelu", "relu", "embedding", "loss", "other")
# Products of a flash kernel's backward pass for each of its forward pass: it makes the scores again (arXiv 2205.14135).
_FLASH_BACKWARD: Final = 2.5

# How much there is of each: calls, FLOPs, and elements moved by kind.
Work = Counter[str]


class Serial(Spec):
    """What operators take, in launches and in what memory takes for the bytes that they move.

    backward_calls: launches of a product of the backward pass, with what differentiates it, where one of the forward pass takes
    one. memory_calls, memory_backward_calls: of an operator that is no product. attention_calls: of attention beside its own,
    for what splits and joins heads. packed: times that factors of a product are packed. The rest: how many times as long as
    memory operators of that kind take for their bytes.
    """

    backward_calls: float = Field(1.0, ge=0)
    attention_calls: float = Field(0.0, ge=0)
    memory_calls: float = Field(1.0, ge=0)
    memory_backward_calls: float = Field(1.0, ge=0)
    product: float = Field(1.0, ge=0)
    packed: float = Field(0.0, ge=0)
    norm: float = Field(1.0, ge=0)
    gelu: float = Field(1.0, ge=0)
    relu: float = Field(1.0, ge=0)
    embedding: float = Field(1.0, ge=0)
    loss: float = Field(1.0, ge=0)
    other: float = Field(1.0, ge=0)

    def each_s(
        self, launch_s: float, flops: float, flash_forward_flops: float, flash_backward_flops: float, element_s: float
    ) -> dict[str, float]:
        """Seconds of one of each kind of work, by what a launch and an element that memory moves take, and FLOP/s."""
        return {
            CALLS: launch_s,
            BACKWARD_CALLS: launch_s * self.backward_calls,
            MEMORY_CALLS: launch_s * self.memory_calls,
            MEMORY_BACKWARD_CALLS: launch_s * self.memory_backward_calls,
            ATTENTION_CALLS: launch_s * self.attention_calls,
            FLOPS: 1 / flops,
            FLASH_FORWARD_FLOPS: 1 / flash_forward_flops,
            FLASH_BACKWARD_FLOPS: 1 / flash_backward_flops,
            **{kind: element_s * float(getattr(self, kind)) for kind in KINDS},
        }


def forward_work(operators: Iterable[Operator], samples: float) -> Work:
    """Of the forward pass over `samples` samples."""
    work: Work = Counter()
    for operator in operators:
        if isinstance(operator, MemoryBound):
            _move(work, MEMORY_CALLS, operator.name, (operator.read + operator.written) * samples)
        elif isinstance(operator, Attention):
            _attend(work, CALLS, operator, samples, 1.0, FLASH_FORWARD_FLOPS)
        else:
            _multiply(work, CALLS, operator, operator.forward(samples), samples)
    return work


def backward_work(operators: Iterable[Operator], samples: float) -> Work:
    """Of the backward pass."""
    work: Work = Counter()
    for operator in operators:
        if isinstance(operator, MemoryBound):
            _move(work, MEMORY_BACKWARD_CALLS, operator.name, (operator.backward_read + operator.backward_written) * samples)
        elif isinstance(operator, Attention):
            _attend(work, BACKWARD_CALLS, operator, samples, _FLASH_BACKWARD, FLASH_BACKWARD_FLOPS)
        else:
            _multiply(work, BACKWARD_CALLS, operator, operator.backward(samples), samples)
    return work


def weights_work(operators: Iterable[Operator], samples: float) -> Work:
    """Of those products of the backward pass that make gradients of weights."""
    work: Work = Counter()
    for operator in operators:
        if isinstance(operator, Matmul | Convolution):
            _multiply(work, BACKWARD_CALLS, operator, operator.backward(samples)[-1:], samples)
    return work


def _move(work: Work, calls: str, name: str, elements: float) -> None:
    kind = "norm" if name.endswith("norm") or name.endswith("norms") else name
    work.update({calls: 1, kind if kind in KINDS else "other": elements})


def _multiply(work: Work, calls: str, operator: Matmul | Convolution, products: Iterable[Product], samples: float) -> None:
    for product in products:
        packed = 0.0
        if isinstance(operator, Matmul):
            moved, packed = _matrices(product), _packed(product)
        else:  # a value is read once, however many windows it is in
            moved = (operator.input_elements + operator.positions * operator.outputs) * samples + operator.weights
        work.update({calls: 1, FLOPS: product.flops, "product": moved, "packed": packed})


def _attend(work: Work, calls: str, operator: Attention, samples: float, times: float, flops: str) -> None:
    """A flash kernel skips what a mask hides; else each product and the softmax between them is a call."""
    work.update({ATTENTION_CALLS: 1})
    if operator.flash:
        rows = operator.heads * operator.queries + operator.key_heads * operator.keys
        moved = rows * (operator.width + operator.value_width) * samples * times
        work.update({calls: 1, flops: operator.forward_flops * operator.seen * samples * times, "product": moved})
        return
    backward = flops == FLASH_BACKWARD_FLOPS
    for product in operator.backward(samples) if backward else operator.forward(samples):
        work.update({calls: 1, FLOPS: product.flops, "product": _matrices(product), "packed": _packed(product)})
    work.update({calls: 1, "other": (3 if backward else 2) * operator.scores * samples})


def _matrices(product: Product) -> float:
    """Elements of both factors and of the result."""
    m, n, k, batch = product
    return float(batch * (m * k + k * n + m * n))


def _packed(product: Product) -> float:
    """Elements of both factors, if they are matrices."""
    m, n, k, batch = product
    return float(batch * (m * k + k * n)) if min(m, n, k) > 1 else 0.0
