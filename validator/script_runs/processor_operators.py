"""Operators that GPUs have in one form and processors in another: attention and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_ATEN: Final = torch.ops.aten


def on_processor(name: str) -> Callable[..., Any] | None:
    """The operator with a name and overload, such as 'aten::mm.default', as a processor runs it; None if it is not known."""
    if name in _OTHERS:
        return _OTHERS[name]
    qualified, _, overload = name.rpartition(".")
    namespace, _, base = qualified.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload)  # type: ignore[no-any-return]
    except AttributeError:
        return None


def _attend(query: Any, key: Any, value: Any, dropout: float, is_causal: bool, mask: Any, scale: Any) -> Any:
    attend = _ATEN._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, dropout, is_causal, attn_mask=mask, scale=scale)


def _attend_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, dropout: float, is_causal: bool, mask: Any, scale: Any
) -> Any:
    # logarithms of sums lie otherwise on processors
    sums = torch.zeros(query.size(0), query.size(2), query.size(1))
    backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(grad, query, key, value, out, sums, dropout, is_causal, attn_mask=mask, scale=scale)


def _flash(
    query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, _: bool = False, *, scale: Any = None
) -> Any:
    return _attend(query, key, value, dropout, is_causal, None, scale)


def _flash_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, first: Any, second: Any, most: Any, most_keys: Any,
    dropout: float, is_causal: bool, seed: Any, offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    return _attend_backward(grad, query, key, value, out, dropout, is_causal, None, scale)


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, sums: bool, dropout: float = 0.0, is_causal: bool = False, *, scale: Any = None
) -> Any:
    return _attend(query, key, value, dropout, is_causal, mask, scale)


def _efficient_backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, out: Any, sums: Any, seed: Any, offset: Any, dropout: float,
    wanted: Any, is_causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    return _attend_backward(grad, query, key, value, out, dropout, is_causal, mask, scale)


def _convolution_backward(grad: Any, image: Any, weight: Any, *rest: Any) -> Any:
    *geometry, mask = rest
    return _ATEN.convolution_backward(grad, image, weight, [weight.size(0)], *geometry, mask)


_OTHERS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_flash_attention.default": _flash,
    "aten::_scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten::_scaled_dot_product_efficient_attention.default": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten::convolution_overrideable.default": _ATEN.convolution.default,
    "aten::convolution_backward_overrideable.default": _convolution_backward,
}
