"""Compiled `flex_attention`: one kernel forward and one backward, which skip blocks that a mask hides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

from scaleproof.simulator.captured.known_kernels import attention_work
from scaleproof.validator.capture.backend.schemas import tensors_of
from scaleproof.validator.capture.packages.operator import integers, launch, like

_NAME = "inductor::flex_attention"
_NOTE = "attends by blocks of a mask whose number depends on values that a capture does not compute; all blocks count"


class KernelInterpreter(fx.Interpreter):
    """Runs operators of a compiled graph that are no fused kernels. note: gets a sentence for users."""

    def __init__(self, graph: fx.GraphModule, note: Callable[[str], None]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self._note = note

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator."""
        if target is flex_attention:
            return self._attention(*args)
        if target is flex_attention_backward:
            return self._gradients(*args)
        return super().call_function(target, args, kwargs)

    def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: Any, mask: Any, *others: Any) -> Any:
        """The result, the logarithms of sums of each row, and its largest scores."""
        shape, order = (*query.shape[:-1], value.shape[-1]), _order(query)
        results = [([shape[place] for place in order], query.dtype), (query.shape[:-1], torch.float32)]
        inputs = tensors_of((query, key, value, mask, others))
        result, sums = launch(_NAME, inputs, results, self._work(query, key, value, mask))
        return _permuted(result, order), sums, sums

    def _gradients(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, result: torch.Tensor, sums: torch.Tensor,
        gradient: torch.Tensor, _: Any, __: Any, ___: Any, mask: Any, scale: float, options: Any, buffers: Sequence[Any] = (),
        *others: Any,
    ) -> Any:  # fmt: skip
        """Gradients of queries, keys and values, and those of tensors that a function of scores reads."""
        samples, own = query.shape[0], (query, key, value)
        orders = list(map(_order, own))
        shapes = [(samples, *one.shape[1:]) for one in own]
        results = [([shape[place] for place in order], query.dtype) for shape, order in zip(shapes, orders, strict=True)]
        read = [one for one in buffers if isinstance(one, torch.Tensor)]
        work = self._work(query, key, value, mask, backward=True)
        inputs = tensors_of((own, result, sums, gradient, mask, read, others))
        made = launch(f"{_NAME}_backward", inputs, [*results, *map(like, read)], work)
        gradients = [_permuted(one, order) for one, order in zip(made, orders, strict=False)]
        summed = [one.sum(0, keepdim=True) if len(one) > len(of) else one for one, of in zip(gradients, own, strict=True)]
        rest = iter(made[len(own) :])
        return *summed, tuple(next(rest) if isinstance(one, torch.Tensor) else None for one in buffers)

    def _work(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, backward: bool = False) -> Any:
        samples, heads, queries, width = query.shape
        _, key_heads, keys, value_width = value.shape
        _, _, partial, _, full, *_, rows, columns, _ = mask
        counts = [integers(one) for one in (partial, full) if one is not None]
        seen = 1.0
        if None in counts:
            self._note(_NOTE)
        else:
            blocks = sum(sum(one) for one in counts if one is not None) / math.prod(partial.shape[:-1])
            seen = min(1.0, blocks * rows * columns / (queries * keys))
        return attention_work(
            samples, heads, queries, keys, width, key_heads=key_heads, value_width=value_width, seen=seen, backward=backward
        )


def _order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the one with the largest stride to the last one, which is contiguous in all results."""
    return [*sorted(range(tensor.dim() - 1), key=tensor.stride, reverse=True), tensor.dim() - 1]


def _permuted(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor whose dimensions had an order in memory."""
    return tensor.permute([order.index(place) for place in range(len(order))])
