"""Work of PyTorch's operators by name: matrix products, attention, a convolution, or bytes that are moved; and its FLOPs.

Captured scripts and traced modules read the same table.

Shapes are those of the tensors that the operator reads, in the order of its arguments; PyTorch's names of operators are without
namespace, overload and the underscore of in-place variants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from scaleproof.simulator.model.operators import Attention, Convolution, Product

Shape = Sequence[int]
# Whether bytes are moved by an operator that is known to be bound by memory bandwidth, or by one of unknown cost.
Boundness = Literal["bandwidth", "unknown"]

# Operators that launch no kernel: views, and allocations and bookkeeping.
_VIEWS: Final = re.compile(
    r"detach|alias|view|view_as|_?reshape(_as|_alias)?|_unsafe_view|as_strided|t|transpose|permute|movedim|expand(_as)?"
    r"|unsqueeze|squeeze|slice|select|narrow|diagonal|unfold|(tensor_)?split|split_with_sizes|chunk|unbind|lift_fresh"
)
_BOOKKEEPING: Final = re.compile(
    r"(new_)?empty(_like|_strided|_permuted)?|resize(_as)?|set|record_stream|is_pinned|_pin_memory"
    r"|_?assert_(tensor_metadata|async)"
)
# Operators that read as many elements of their first tensor as they write, and those that read rows for all indices and write
# sums of groups of them.
_LOOK_UPS: Final = frozenset({"embedding", "index", "index_select", "gather"})
# How often operators read their tensors, in the order of arguments, where not once. Gradients of a norm's weights come from a
# kernel that reads the output's gradient and the input again (layer_norm_kernel.cu); a loss reads one score of each row, and
# its gradient none; rows of a softmax that are longer than what its threads keep are read twice (SoftMax.cu).
_READS: Final[Mapping[str, tuple[int, ...]]] = {
    "native_layer_norm_backward": (2, 2), "_fused_rms_norm_backward": (2, 2), "nll_loss_forward": (0,),
    "nll_loss_backward": (1, 0), "_log_softmax": (2,), "_softmax": (2,),
}  # fmt: skip
# Operators that do not read what they write in place.
_ONLY_WRITE: Final = re.compile(r"(_foreach_)?(zero|fill|copy)|random|normal|uniform|bernoulli|exponential")
_ROW_IN_REGISTERS: Final = 1024
_BAGS: Final = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})
_EMBEDDINGS: Final = _BAGS | {"embedding"}
# Operators whose time is that of the bytes which they read and write.
_BANDWIDTH: Final = re.compile(
    # arithmetic, comparisons and activation functions of single elements
    r"_?(foreach|amp_foreach|amp)_\w+|_?(fused|multi_tensor)_\w*"
    r"|r?(add|sub|mul|div|pow|remainder|fmod)|addc(mul|div)|neg|abs|sign|exp2?|expm1|log(2|10|1p)?|r?sqrt|reciprocal|square"
    r"|sin|cos|tan|asin|acos|atan2?|sinh|cosh|tanh|erf(inv|c)?|sigmoid|floor\w*|ceil|round|trunc|frac|clamp\w*|lerp|where"
    r"|(g|r|l|s|c|p|m)?e?lu\w*|gelu\w*|silu\w*|mish\w*|soft(plus|shrink)\w*|hard\w+|leaky_relu\w*|threshold\w*|glu\w*"
    r"|(eq|ne|lt|le|gt|ge|maximum|minimum|logical_\w+|bitwise_\w+|is(nan|inf|finite|in)|nan_to_num|complex|real|imag|conj\w*)"
    r"|\w*sigmoid_(forward|backward)|\w*tanh_backward|\w*(relu|gelu|silu|elu)_backward"
    # norms, softmax, dropout, losses, pooling, resampling
    r"|_?(native|fused|cudnn|miopen|batch)\w*norm\w*|_?rms_norm\w*|_?\w*softmax\w*|\w*dropout\w*|\w*loss\w*"
    r"|_?(adaptive_)?(avg|max)_pool\w*|\w*upsample_\w+|\w+_pad(\d*d|_nd)?\w*|constant_pad_nd|im2col|col2im|pixel_\w+"
    # copies, look-ups, reductions, and filling
    r"|_?embedding\w*|(masked_|index_|slice_|select_|diagonal_)?(select|gather|scatter|fill|copy|put|add|index)(_reduce|_add|_backward)?"
    r"|_?index\w*|masked_\w+|_?cat|stack|split_with_sizes_copy|_?chunk_cat|all_gather_copy_\w+|clone|_?to_copy|copy|repeat\w*|roll|flip"
    r"|trilu?|triu|tril|mean|sum|prod|amax|amin|aminmax|max|min|any|all|std|var(_mean)?|\w*norm|arg(max|min)|cum(sum|prod|max|min)"
    r"|(new_)?(zeros?|ones|full|eye|arange|linspace)(_like)?|zero|fill|scalar_tensor|rand(int|n|perm|om)?(_like)?|normal|uniform"
    r"|bernoulli|exponential|bincount|histc|one_hot|local_scalar_dense|_local_scalar_dense|dot|mv|addmv|vdot|addr|outer|trace"
    r"|view_as_(real|complex)|lerp|bucketize|searchsorted|nonzero|sort|argsort|topk|multinomial|_?unique2|grid_sampler\w*"
)
_SUFFIXES: Final = re.compile(r"(\.\w+)?$")
# Scaled dot-product attention: names of its kernels, and of those whose tensors have the sequence before the heads.
_ATTENTION: Final = re.compile(
    r"_?(scaled_dot_product_\w*attention|(flash|efficient|cudnn)_attention)(_for_cpu)?(_overrideable)?(_forward)?"
)
_SEQUENCE_FIRST: Final = re.compile(r"_(flash|efficient|cudnn)_attention_(forward|backward)")
_BACKWARD: Final = "_backward"
# Place of queries among the tensors of attention's backward pass, which begin with the gradient of the output.
_AFTER_GRADIENT: Final = 1


@dataclass(frozen=True)
class Work:
    """Work of an operator.

    products: matrix products, all of the same precision. attention, convolution: at most one of them; `samples` of it, in the
    backward pass if `backward`. moved_bytes: read and written; boundness: how the time of an operator that is none of these is
    known, None for an operator without kernels. narrow: whether products compute in 8 bits. crosses: whether bytes move between
    the host and the device.
    """

    products: tuple[Product, ...] = ()
    attention: Attention | None = None
    convolution: Convolution | None = None
    samples: float = 1.0
    backward: bool = False
    moved_bytes: float = 0.0
    boundness: Boundness | None = None
    narrow: bool = False
    crosses: bool = False

    @cached_property
    def flops(self) -> float:
        """FLOPs: two per multiply-add of products, all scores of attention, and twice as many in its backward pass, as
        published formulae count them."""
        if self.attention is not None:
            one = self.attention.backward_flops if self.backward else self.attention.forward_flops
            return one * self.samples
        if self.convolution is not None:
            one = self.convolution.backward_flops if self.backward else self.convolution.forward_flops
            return one * self.samples
        return sum(product.flops for product in self.products)

    @property
    def launches(self) -> bool:
        """Whether the operator launches a kernel."""
        return bool(self.products or self.attention or self.convolution or self.boundness)


_NOTHING: Final = Work()


def copied(moved_bytes: float, crosses: bool) -> Work:
    """The work of a copy, which reads and writes `moved_bytes` in all."""
    return Work(moved_bytes=moved_bytes, boundness="bandwidth", crosses=crosses)


def is_free(name: str) -> bool:
    """Whether an operator launches no kernel, by its name as `base_name` returns it."""
    return is_view(name) or _BOOKKEEPING.fullmatch(name) is not None


def is_view(name: str) -> bool:
    """Whether an operator only refers to the memory of another tensor, by its base name."""
    return _VIEWS.fullmatch(name) is not None


def looks_up(name: str) -> bool:
    """Whether an operator reads only as much of its first tensor as it writes, by its base name."""
    return name in _LOOK_UPS


def only_writes(name: str) -> bool:
    """Whether an operator does not read the tensors that it writes in place, by its base name."""
    return _ONLY_WRITE.fullmatch(name) is not None


def times_read(name: str, last_sides: Sequence[int], outputs: int) -> list[int]:
    """How often an operator reads each of its tensors, by its base name. last_sides: last dimensions of the tensors, or 1;
    outputs: number of tensors that it writes."""
    times = [*_READS.get(name, ()), *[1] * len(last_sides)][: len(last_sides)]
    is_short = name.endswith("softmax") and last_sides[0] <= _ROW_IN_REGISTERS
    return [1] * len(times) if is_short or (name.endswith("norm_backward") and outputs < 2) else times


def looks_up_bags(name: str) -> bool:
    """Whether an operator reads rows of its first tensor for all indices and writes their sums, by its base name."""
    return name in _BAGS


def sparse_lookup(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any] | None) -> tuple[Any, Any] | None:
    """The table and the numbers of the rows that an embedding with sparse gradients reads; None for other operators."""
    if base_name(function._schema.name) not in _EMBEDDINGS:
        return None
    given = zip((argument.name for argument in function._schema.arguments), arguments, strict=False)
    is_sparse = ({**dict(given), **(keywords or {})}).get("sparse", False)
    return (arguments[0], arguments[1]) if is_sparse else None


def is_bound_by_bandwidth(name: str) -> bool:
    """Whether the time of an operator is known to be that of the bytes which it reads and writes, by its base name."""
    return _BANDWIDTH.fullmatch(name) is not None


def base_name(name: str) -> str:
    """The name of an operator without namespace, overload and underscores at its end: 'add' of 'aten::add_.Tensor'."""
    short = name.rpartition("::")[2] if "::" in name else name.removeprefix("aten.")
    return _SUFFIXES.sub("", short.partition(".")[0]).rstrip("_") or short


def work_of(name: str, shapes: Sequence[Shape], arguments: Mapping[str, Any], moved_bytes: float) -> Work:
    """The work of an operator.

    name: as PyTorch writes it, such as 'aten::mm'. shapes: of the tensors that it reads. arguments: those that determine FLOPs
    and are no tensors, by their names in PyTorch. moved_bytes: that it reads and writes.
    """
    base = base_name(name)
    if is_free(base):
        return _NOTHING
    of_products = _PRODUCTS.get(base)
    if of_products is not None:
        return Work(products=of_products(shapes), moved_bytes=moved_bytes, boundness="bandwidth", narrow=base in _NARROW)
    forward_name = base.removesuffix(_BACKWARD)
    if _ATTENTION.fullmatch(forward_name):
        return _attention(base, shapes, arguments, moved_bytes)
    if forward_name.endswith("convolution") or forward_name.endswith("convolution_overrideable"):
        return _convolution(base, shapes, arguments, moved_bytes)
    return Work(moved_bytes=moved_bytes, boundness="bandwidth" if is_bound_by_bandwidth(base) else "unknown")


def _mm(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """A product of the last two matrices, after whatever is added to it."""
    (*_, rows, inner), (*_, columns) = shapes[-2:]
    return (Product(rows, columns, inner),)


def _bmm(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """A batch of products of the last two tensors."""
    (batch, rows, inner), (*_, columns) = shapes[-2:]
    return (Product(rows, columns, inner, batch),)


def _scaled_mm(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """A product of the first two matrices; their scales follow."""
    return _mm(shapes[:2])


def _linear(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """A product of all rows of the input and the transposed weights."""
    (*rows, inner), (columns, _) = shapes[:2]
    return (Product(math.prod(rows), columns, inner),)


def _grouped_mm(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """Products of groups of rows with a matrix each, or of groups of inner elements; groups count as equally large."""
    left, right = shapes[:2]
    if len(left) == len(right) == 3:
        return _bmm(shapes[:2])
    if len(right) == 3:
        return (Product(max(1, left[0] // right[0]), right[2], left[1], right[0]),)
    if len(left) == 3:
        return (Product(left[1], max(1, right[1] // left[0]), left[2], left[0]),)
    groups = shapes[2][0] if len(shapes) > 2 and len(shapes[2]) == 1 else 1
    return (Product(left[0], right[1], max(1, left[1] // groups), groups),)


def _scaled_grouped_mm(shapes: Sequence[Shape]) -> tuple[Product, ...]:
    """Products of groups, whose scales come before the ends of groups."""
    return _grouped_mm((*shapes[:2], *shapes[4:]))


# Products in 8 bits.
_NARROW: Final = ("_scaled_mm", "_scaled_grouped_mm")
_PRODUCTS: Final[Mapping[str, Callable[[Sequence[Shape]], tuple[Product, ...]]]] = {
    "mm": _mm, "addmm": _mm, "_addmm_activation": _mm, "bmm": _bmm, "baddbmm": _bmm, "linear": _linear,
    "_scaled_mm": _scaled_mm, "_grouped_mm": _grouped_mm, "_scaled_grouped_mm": _scaled_grouped_mm,
}  # fmt: skip


def _attention(base: str, shapes: Sequence[Shape], arguments: Mapping[str, Any], moved_bytes: float) -> Work:
    """Attention in one kernel, of queries, keys and values with shape (samples, heads, sequence, width), or with the sequence
    before the heads."""
    backward = base.endswith(_BACKWARD)
    first = _AFTER_GRADIENT if backward else 0
    query, key, value = shapes[first : first + 3]
    if _SEQUENCE_FIRST.fullmatch(base):
        query, key, value = ((samples, heads, length, width) for samples, length, heads, width in (query, key, value))
    causal = bool(arguments.get("is_causal", arguments.get("causal", arguments.get("custom_mask_type", 0))))
    attention = Attention(
        "attention", query[-3], key[-3], query[-2], key[-2], query[-1], value[-1], seen=0.5 if causal else 1.0, flash=True
    )
    return Work(
        attention=attention, samples=math.prod(query[:-3]), backward=backward, moved_bytes=moved_bytes, boundness="bandwidth"
    )


def _convolution(base: str, shapes: Sequence[Shape], arguments: Mapping[str, Any], moved_bytes: float) -> Work:
    """A convolution, or the gradients of its input and its weights. Dimensions before the last are merged."""
    backward = base.endswith(_BACKWARD)
    first = _AFTER_GRADIENT if backward else 0
    image, weight = shapes[first : first + 2]
    groups, transposed = int(arguments.get("groups", 1)), bool(arguments.get("transposed", False))
    kernel = weight[2:]
    positions = math.prod(image[2:] if transposed else shapes[0][2:] if backward else _positions(image, kernel, arguments))
    inputs, outputs = (weight[0], weight[1] * groups) if transposed else (image[1], weight[0])
    mask = arguments.get("output_mask", (True, True))
    convolution = Convolution(
        "convolution", inputs, outputs, (math.prod(kernel[:-1]), kernel[-1]), positions, math.prod(image[1:]), groups,
        input_gradient=bool(mask[0]),
    )  # fmt: skip
    return Work(convolution=convolution, samples=image[0], backward=backward, moved_bytes=moved_bytes, boundness="bandwidth")


def _positions(image: Shape, kernel: Shape, arguments: Mapping[str, Any]) -> list[int]:
    """Outputs of a convolution along each dimension of the image."""
    sides = len(kernel)
    defaults = {"stride": 1, "padding": 0, "dilation": 1}
    stride, padding, dilation = ((list(arguments.get(name, (default,))) * sides)[:sides] for name, default in defaults.items())
    return [
        (size + 2 * padding[side] - dilation[side] * (kernel[side] - 1) - 1) // stride[side] + 1
        for side, size in enumerate(image[2:])
    ]
