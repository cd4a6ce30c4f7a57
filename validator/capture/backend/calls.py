"""Calls of operators as they were made, so that another device can repeat them: arguments, and tensors by their allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_map

from scaleproof.validator.capture.backend.memory import Arena, Content
from scaleproof.validator.capture.backend.schemas import tensors_of

# Most elements of integers whose values are kept.
_MOST_KEPT: Final = 1 << 20
_COPY: Final = "aten::copy_"


class TensorUse(NamedTuple):
    """A tensor of a call. allocation: its number, −1 for a tensor on the host. offset: in elements. values: of integers."""

    allocation: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    values: torch.Tensor | None = None


class OperatorCall(NamedTuple):
    """A call. operator: name and overload, such as 'aten::mm.default'. arguments, keywords: with a TensorUse in place of each
    tensor. outputs: the tensors that it returned."""

    operator: str
    arguments: Any
    keywords: dict[str, Any]
    outputs: tuple[TensorUse, ...]


class CallRecorder:
    """Records calls. content: what is known of a tensor's values."""

    def __init__(self, arena: Arena, content: Callable[[torch.Tensor], Content]) -> None:
        self._arena, self._content = arena, content

    def before(self, arguments: Any, keywords: Any) -> tuple[Any, dict[str, Any]]:
        """The arguments of a call that is about to be made."""
        return tree_map(self._use, tuple(arguments)), tree_map(self._use, dict(keywords))

    def after(self, operator: Any, before: tuple[Any, dict[str, Any]], result: Any) -> OperatorCall:
        """The call, when it has returned."""
        outputs = tuple(self._use(tensor, with_values=False) for tensor in tensors_of(result))
        return OperatorCall(f"{operator._schema.name}.{operator._overloadname or 'default'}", *before, outputs)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> OperatorCall:
        """A copy."""
        uses = self._use(target, with_values=False), self._use(source)
        return OperatorCall(f"{_COPY}.default", uses, {}, ())

    def _use(self, value: Any, with_values: bool = True) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor):
            return value
        block = self._arena.block(value) if value.is_cuda else None
        number = block.number if block is not None else -1
        values = self._values(value) if with_values else None
        return TensorUse(number, int(value.storage_offset()), tuple(value.size()), tuple(value.stride()), value.dtype, values)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Values that decide what is computed: integers, and all numbers on the host."""
        if tensor.numel() > _MOST_KEPT:
            return None
        if not tensor.is_cuda:
            return tensor.detach().clone()
        is_known = not tensor.dtype.is_floating_point and self._content(tensor) is not Content.UNKNOWN
        return self._arena.on_host(tensor).clone() if is_known else None
