"""What an operator's schema says: which arguments it writes, whether it returns views, and which arguments decide its FLOPs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from scaleproof.simulator.captured.record import ALLOW_TF32, Signature
from scaleproof.simulator.model.torch_operators import base_name, looks_up, looks_up_bags, only_writes, times_read

# Operators that write without reading what was there.
FILLS: Final = {"aten::zero_", "aten::fill_", "aten::random_", "aten::copy_"}
_PLAIN: Final = (int, float, bool)
# The argument of formulas of FLOPs that is the result's shape; more arguments than any operator has.
_RESULT, _ANY = "out_shape", 1 << 10


_base_name: Final = functools.cache(base_name)


def _grouped_flops(left: Any, right: Any, *_: Any, out_val: Any = None, **__: Any) -> float:
    """FLOPs of products of groups: each row of a group meets one matrix, or each inner element one group."""
    own_columns = right.shape[-1] / (left.shape[0] if left.dim() > right.dim() else 1)
    return float(2 * left.numel() * own_columns)


# Formulas of operators for which PyTorch has none.
_FORMULAS: Final = {torch.ops.aten._grouped_mm: _grouped_flops, torch.ops.aten._scaled_grouped_mm: _grouped_flops}


class OperatorSchema(NamedTuple):
    """name: such as 'aten::mm'. written: places and names of arguments that it writes; out: whether for results. is_view:
    whether results share memory with arguments. returns: number of results. formula: of FLOPs from arguments, if known;
    formula_arguments: the number of them that it takes by position."""

    name: str
    written: tuple[tuple[int, str], ...]
    out: bool
    is_view: bool
    returns: int
    formula: Any
    formula_arguments: int

    def writes(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The arguments that the operator writes, tensors or lists of them. Fused optimizers write gradients only where they
        unscale them."""
        values = [
            keywords[name] if name in keywords else arguments[place] if place < len(arguments) else None
            for place, name in self.written
            if name != "grads" or keywords.get("grad_scale") is not None
        ]
        return [value for value in values if value is not None]


@functools.cache
def schema_of(operator: torch._ops.OpOverload) -> OperatorSchema:
    """What the schema of an operator says."""
    schema = operator._schema
    written = tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    out = bool(written) and schema.arguments[-1].is_out
    formula = flop_registry.get(operator.overloadpacket) or _FORMULAS.get(operator.overloadpacket)
    return OperatorSchema(schema.name, written, out, is_view, len(schema.returns), formula, _taken(formula))


def _taken(formula: Any) -> int:
    """Number of an operator's arguments that a formula of FLOPs takes by position: those before the result's shape. Overloads
    of the operator may have more."""
    if formula is None:
        return 0
    parameters = list(inspect.signature(formula).parameters.values())
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    takes_rest = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return _ANY if takes_rest else names.index(_RESULT) if _RESULT in names else len(names)


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Tensors in nested lists."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def tensor_text(tensor: torch.Tensor) -> tuple[tuple[int, ...], str, bool]:
    """Shape, type, and whether the tensor is contiguous."""
    return tuple(tensor.shape), str(tensor.dtype)[6:], tensor.is_contiguous()


def signature_of(
    operator: torch._ops.OpOverload, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
    arguments: Sequence[Any], keywords: Mapping[str, Any],
) -> Signature:  # fmt: skip
    """The signature of a call; with plain arguments where they decide FLOPs, and whether those of 32-bit floats may be computed
    as TF32."""
    named: dict[str, Any] = {}
    if schema_of(operator).formula is not None:
        for place, argument in enumerate(operator._schema.arguments):
            value = keywords.get(argument.name, arguments[place] if place < len(arguments) else argument.default_value)
            if _is_plain(value):
                named[argument.name] = list(value) if isinstance(value, (list, tuple)) else value
        if any(tensor.dtype is torch.float32 for tensor in inputs):
            named[ALLOW_TF32] = _allows_tf32(operator._schema.name)
    return Signature(tuple(map(tensor_text, inputs)), tuple(map(tensor_text, outputs)), named)


def _allows_tf32(name: str) -> bool:
    """Whether the script lets an operator compute products of 32-bit floats as TF32: flags of cuDNN for convolutions, which are
    on unless the script sets them, and of cuBLAS for all others, which are off."""
    backends: Any = torch.backends
    flags = backends.cudnn.conv if "convolution" in name else backends.cuda.matmul
    return bool(flags.fp32_precision == "tf32")


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, _PLAIN) for one in value)
    )


def moved_bytes(name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Bytes that an operator reads and writes; elements that a stride of zero repeats count once."""
    if only_writes(base := _base_name(name)):
        own = {id(tensor) for tensor in outputs}
        inputs = [tensor for tensor in inputs if id(tensor) not in own]
    written = sum(_bytes(tensor) for tensor in outputs)
    times = times_read(base, [tensor.shape[-1] if tensor.dim() else 1 for tensor in inputs], len(outputs))
    read = [number * _bytes(tensor) for number, tensor in zip(times, inputs, strict=True)]
    if looks_up(base) and read:
        read[0] = min(read[0], written)
    elif looks_up_bags(base):
        table, indices = inputs[:2]
        read[0] = min(read[0], indices.numel() * table[0].numel() * table.element_size())
    return sum(read), written


def _bytes(tensor: torch.Tensor) -> int:
    count = tensor.numel()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride == 0 and size > 1:
            count //= size
    return count * tensor.element_size()
