"""Scaled dot-product attention by the kernel that PyTorch chooses on NVIDIA GPUs."""

from __future__ import annotations

from typing import Final

import torch

_ATEN: Final = torch.ops.aten
# Dimensions of queries of attention with separate samples and heads.
_BATCHED: Final = 4
# Widest heads that the flash kernel takes.
_WIDEST: Final = 256


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attention: by the flash kernel for half types without mask, by the efficient one otherwise, unfused where neither can."""
    result: torch.Tensor
    if query.dim() != _BATCHED or query.size(-1) > _WIDEST:
        unfused = _ATEN._scaled_dot_product_attention_math
        result, *_ = unfused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return result
    if attn_mask is None and query.dtype is not torch.float32 and query.size(-1) == value.size(-1):
        flash = _ATEN._scaled_dot_product_flash_attention
        result, *_ = flash(query, key, value, dropout_p, is_causal, False, scale=scale)
        return result
    groups = query.size(1) // key.size(1)
    if enable_gqa and groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    needs_sums = query.requires_grad or key.requires_grad or value.requires_grad
    efficient = _ATEN._scaled_dot_product_efficient_attention
    result, *_ = efficient(query, key, value, _bias(attn_mask, query, key), needs_sums, dropout_p, is_causal, scale=scale)
    return result


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A mask as what is added to the scores."""
    if mask is None:
        return None
    added = torch.zeros_like(mask, dtype=query.dtype) if mask.dtype is torch.bool else mask
    return added.expand(query.size(0), query.size(1), query.size(2), key.size(2))
