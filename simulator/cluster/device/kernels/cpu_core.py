"""Time of layers on a CPU core, which overlaps nothing: calls, arithmetic and memory traffic add up.

Frameworks call one operator after another, and little of the previous operator's data is still in the core's caches: the time
of an operator is the sum of the times of its calls, its FLOPs and its bytes. So times are linear in a few numbers of the
device, which `scaleproof calibrate` fits to measured layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.operators import (
    Attention,
    Convolution,
    Matmul,
    MemoryBound,
    Operator,
    Product,
    Scan,
    WeightPass,
)
from scaleproof.simulator.model.recommender.dlrm import Combination
from scaleproof.simulator.model.recommender.lookups import Lookup

CALLS: Final = "calls"
BACKWARD_CALLS: Final = "backward calls"
MEMORY_CALLS: Final = "memory calls"
MEMORY_BACKWARD_CALLS: Final = "memory backward calls"
ATTENTION_CALLS: Final = "attention calls"
FLOPS: Final = "flops"
FLASH_FORWARD_FLOPS: Final = "flash forward flops"
FLASH_BACKWARD_FLOPS: Final = "flash backward flops"
CONVOLUTION_CALLS: Final = "convolution calls"
EVERY_CALL: Final = (CALLS, BACKWARD_CALLS, MEMORY_CALLS, MEMORY_BACKWARD_CALLS, ATTENTION_CALLS, CONVOLUTION_CALLS)
CONVOLUTION_FLOPS: Final = "convolution flops"
GROUPED_FLOPS: Final = "grouped convolution flops"
# Kinds of memory traffic, each a field of SerialCosts; `other` is the rest. `packed`: libraries copy the factors of a product
# so that they can be read in order, but not those of a product of a matrix and a vector. `rms_norm`, `rms_norm_backward`,
# `rotary`, `gated`: several operators of a framework, where the model counts the traffic of one. `lookup`, `row_update`:
# elements of rows that lookups sum, and whose gradients change them; `lookup_row`: rows that either of them finds.
# `pairs`: of products of all pairs of features, which are gathered one by one. `score`: exponentials of scores in flash
# kernels.
KINDS: Final = (
    "product", "packed", "norm", "rms_norm", "rms_norm_backward", "group_norm", "rotary", "gated", "gelu", "silu", "relu",
    "embedding", "lookup", "lookup_row", "row_update", "pairs", "convolution", "score", "loss", "other",
)  # fmt: skip
# Kinds of operators that have other names.
_KIND_OF: Final = {
    "rms norm": "rms_norm", "head norms": "rms_norm", "latent norm": "rms_norm", "swiglu": "gated", "geglu": "gated",
    "group norm": "group_norm",
}  # fmt: skip
# Kinds that cost what another one costs unless they were measured.
_LIKE: Final = {
    "rms_norm": "norm", "rms_norm_backward": "rms_norm", "group_norm": "norm", "rotary": "other", "gated": "other",
    "silu": "other", "lookup": "embedding", "lookup_row": "embedding", "row_update": "embedding", "pairs": "other",
    "convolution": "product",
}  # fmt: skip
# Prefix of the names of torch's operators.
_OF_TORCH: Final = "native_"
# Calls for the gradient and the update of a table's looked-up rows; for an interaction of all pairs, a product and the choice
# of its elements; for losses of several operators.
_UPDATE_CALLS: Final = 3
_PAIRS_CALLS: Final = 3
_CALLS_OF: Final = {"loss": 2, "click loss": 2}
# Times that each output of divided tables is read or written in addition: joined for other workers, and divided by table.
_COPIES: Final = 4
# Products of a flash kernel's backward pass per product of its forward pass: it recomputes the scores (arXiv 2205.14135).
_FLASH_BACKWARD: Final = 2.5

# Amounts of work by the names above: calls, FLOPs, and elements moved by kind.
Work = Counter[str]


class SerialCosts(Spec):
    """Costs of operators, in units of the launch time and of the memory's time for their bytes.

    backward_calls: launch times per product of the backward pass, including autograd's work; a product of the forward pass has
    one. memory_calls, memory_backward_calls: launch times per operator that is not a product. attention_calls: additional
    launch times per attention, which splits and joins heads. packed: times that factors of a product are packed.
    convolution_products, grouped_products: time per FLOP of convolutions, dense and grouped, over that of products. The others:
    time of operators of that kind over the memory's time for their bytes; rms_norm is that of `norm`, rms_norm_backward that of
    `rms_norm`, rotary and gated are that of `other` if absent.
    """

    backward_calls: float = Field(1.0, ge=0)
    attention_calls: float = Field(0.0, ge=0)
    convolution_calls: float = Field(0.0, ge=0)
    convolution_products: float = Field(1.0, ge=0)
    grouped_products: float = Field(1.0, ge=0)
    memory_calls: float = Field(1.0, ge=0)
    memory_backward_calls: float = Field(1.0, ge=0)
    product: float = Field(1.0, ge=0)
    score: float = Field(0.0, ge=0)
    packed: float = Field(0.0, ge=0)
    norm: float = Field(1.0, ge=0)
    rms_norm: float | None = Field(None, ge=0)
    rms_norm_backward: float | None = Field(None, ge=0)
    rotary: float | None = Field(None, ge=0)
    gated: float | None = Field(None, ge=0)
    group_norm: float | None = Field(None, ge=0)
    silu: float | None = Field(None, ge=0)
    lookup: float | None = Field(None, ge=0)
    lookup_row: float | None = Field(None, ge=0)
    row_update: float | None = Field(None, ge=0)
    pairs: float | None = Field(None, ge=0)
    convolution: float | None = Field(None, ge=0)
    gelu: float = Field(1.0, ge=0)
    relu: float = Field(1.0, ge=0)
    embedding: float = Field(1.0, ge=0)
    loss: float = Field(1.0, ge=0)
    other: float = Field(1.0, ge=0)

    def each_s(
        self, launch_s: float, flops: float, flash_forward_flops: float, flash_backward_flops: float, element_s: float
    ) -> dict[str, float]:
        """Seconds per unit of each kind of work. element_s: the memory's time per element; the FLOP rates are per second."""
        return {
            CALLS: launch_s,
            BACKWARD_CALLS: launch_s * self.backward_calls,
            MEMORY_CALLS: launch_s * self.memory_calls,
            MEMORY_BACKWARD_CALLS: launch_s * self.memory_backward_calls,
            ATTENTION_CALLS: launch_s * self.attention_calls,
            CONVOLUTION_CALLS: launch_s * self.convolution_calls,
            FLOPS: 1 / flops,
            CONVOLUTION_FLOPS: self.convolution_products / flops,
            GROUPED_FLOPS: self.grouped_products / flops,
            FLASH_FORWARD_FLOPS: 1 / flash_forward_flops,
            FLASH_BACKWARD_FLOPS: 1 / flash_backward_flops,
            **{kind: element_s * self._times(kind) for kind in KINDS},
        }

    def _times(self, kind: str) -> float:
        """Time of operators of a kind over the memory's time for their bytes."""
        own: float | None = getattr(self, kind)
        return self._times(_LIKE[kind]) if own is None else own


def forward_work(operators: Iterable[Operator], samples: float) -> Work:
    """Work of the forward pass over `samples` samples."""
    return _work(operators, samples, backward=False)


def backward_work(operators: Iterable[Operator], samples: float) -> Work:
    """Work of the backward pass over `samples` samples."""
    return _work((operator for operator in operators if operator.has_backward), samples, backward=True)


def _work(operators: Iterable[Operator], samples: float, backward: bool) -> Work:
    work: Work = Counter()
    for operator in operators:
        if isinstance(operator, MemoryBound):
            _move(work, operator, samples, backward)
        elif isinstance(operator, Attention):
            _attend(work, operator, samples, backward)
        elif isinstance(operator, Scan):
            _multiply_activations(work, operator, samples, backward)
        else:
            products = operator.backward(samples) if backward else operator.forward(samples)
            _multiply(work, BACKWARD_CALLS if backward else CALLS, operator, products, samples)
    return work


def weights_work(operators: Iterable[Operator], samples: float) -> Work:
    """Work of the backward pass's products that compute weight gradients."""
    work: Work = Counter()
    for operator in operators:
        if isinstance(operator, Matmul | Convolution) and operator.weight_gradient:
            _multiply(work, BACKWARD_CALLS, operator, operator.backward(samples)[-1:], samples)
    return work


def _move(work: Work, operator: MemoryBound, samples: float, backward: bool) -> None:
    name = operator.name.removeprefix(_OF_TORCH).replace("_", " ")
    kind = _KIND_OF.get(name, name)
    if kind not in KINDS:
        kind = "norm" if kind.endswith("norm") else "other"
    if isinstance(operator, WeightPass):
        work.update({MEMORY_BACKWARD_CALLS if backward else MEMORY_CALLS: operator.kernels, kind: operator.moved})
        return
    if isinstance(operator, Lookup):
        _look_up(work, operator, samples, backward)
        return
    if isinstance(operator, Combination) and operator.pairs:
        _combine(work, operator, samples, backward)
        return
    calls = _CALLS_OF.get(operator.name, 1)
    if not backward:
        work.update({MEMORY_CALLS: calls, kind: (operator.read + operator.written) * samples})
        return
    kind = "rms_norm_backward" if kind == "rms_norm" else kind
    work.update({MEMORY_BACKWARD_CALLS: calls, kind: operator.backward_moved * samples})


def _look_up(work: Work, operator: Lookup, samples: float, backward: bool) -> None:
    """Adds the work of lookups, of which each finds its row, whether or not another one has found it before, as in torch.

    Gradients of whole tables are those of embeddings. An optimizer of their own changes the looked-up rows alone.
    """
    rows, elements = operator.lookups(samples), operator.looked_elements(samples)
    if not backward:
        copied = 0.0 if operator.optimizer is None else _COPIES * operator.written * samples
        work.update({MEMORY_CALLS: len(operator.parts), "lookup_row": rows, "lookup": elements, "other": copied})
    elif operator.optimizer is None:
        zeros = operator.dense_gradient_bytes / operator.element_bytes
        work.update({MEMORY_BACKWARD_CALLS: len(operator.parts), "embedding": elements + zeros})
    else:
        calls = _UPDATE_CALLS * len(operator.parts)
        work.update({MEMORY_BACKWARD_CALLS: calls, "lookup_row": rows, "row_update": elements})


def _combine(work: Work, operator: Combination, samples: float, backward: bool) -> None:
    """Adds the work of an interaction of all pairs."""
    calls = MEMORY_BACKWARD_CALLS if backward else MEMORY_CALLS
    flops = operator.backward_flops if backward else operator.forward_flops
    moved = operator.backward_moved if backward else operator.read + operator.written
    work.update({calls: _PAIRS_CALLS, FLOPS: flops * samples, "pairs": moved * samples})


def _multiply(work: Work, calls: str, operator: Matmul | Convolution, products: Iterable[Product], samples: float) -> None:
    for product in products:
        if isinstance(operator, Matmul):
            work.update({calls: 1, FLOPS: product.flops, "product": _matrices(product), "packed": _packed(product)})
            continue
        # each input value is read once, even if it is in several windows
        moved = (operator.input_elements + operator.positions * operator.outputs) * samples + operator.weights
        flops = CONVOLUTION_FLOPS if operator.groups == 1 else GROUPED_FLOPS
        work.update({calls: 1, CONVOLUTION_CALLS: 1, flops: product.flops, "convolution": moved})


def _attend(work: Work, operator: Attention, samples: float, backward: bool) -> None:
    """Adds the work of attention: one call that skips masked scores if it is flash attention, else a call for each product and
    for the softmax."""
    calls = BACKWARD_CALLS if backward else CALLS
    work.update({ATTENTION_CALLS: 1})
    if operator.flash:
        times, flops = (_FLASH_BACKWARD, FLASH_BACKWARD_FLOPS) if backward else (1.0, FLASH_FORWARD_FLOPS)
        rows = operator.heads * operator.queries + operator.key_heads * operator.keys
        scores = operator.heads * operator.queries * operator.keys * operator.seen * samples
        moved = rows * (operator.width + operator.value_width) * samples * times
        work.update(
            {calls: 1, flops: operator.forward_flops * operator.seen * samples * times, "product": moved, "score": scores}
        )
        return
    _multiply_activations(work, operator, samples, backward)


def _multiply_activations(work: Work, operator: Attention | Scan, samples: float, backward: bool) -> None:
    """Adds the work of products of activations: a call for each, and for the kernel between them."""
    calls = BACKWARD_CALLS if backward else CALLS
    for product in operator.backward(samples) if backward else operator.forward(samples):
        work.update({calls: 1, FLOPS: product.flops, "product": _matrices(product), "packed": _packed(product)})
    work.update({calls: 1, "other": operator.between[backward] * samples})


def _matrices(product: Product) -> float:
    """Elements of both factors and the result of a product."""
    m, n, k, batch = product
    return float(batch * (m * k + k * n + m * n))


def _packed(product: Product) -> float:
    """Elements of both factors of a product; zero if one of them is a vector, which is not packed."""
    m, n, k, batch = product
    return float(batch * (m * k + k * n)) if min(m, n, k) > 1 else 0.0
