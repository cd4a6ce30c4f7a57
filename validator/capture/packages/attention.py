"""Stands in for flash_attn and xformers: attention by one kernel, and what comes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from scaleproof.validator.capture.packages.functions import (
    LossModule,
    Sizes,
    attention,
    elementwise,
    norm,
    norm_type,
    not_captured,
    rotated,
    seen,
    sizes_of_lengths,
)

_ALL: Final = (-1, -1)


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = _ALL,
    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Attention of tensors with shape (samples, sequence, heads, width)."""
    samples, queries, heads, width = q.shape
    sizes = Sizes(samples, queries, k.shape[1])
    tensors = [q, k, v, *([alibi_slopes] if alibi_slopes is not None else [])]
    share = seen(sizes, causal, window_size)
    result, sums = attention("flash_attn::flash_attn_func", tensors, (heads, k.shape[2]), (width, v.shape[-1]), sizes, share)
    return (result, sums, None) if return_attn_probs else result


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any = 0, max_seqlen_k: Any = 0,
    dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = _ALL, softcap: float = 0.0,
    alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Attention of packed sequences, with shape (tokens, heads, width)."""
    tokens, heads, width = q.shape
    sizes = sizes_of_lengths(cu_seqlens_q, cu_seqlens_k, tokens, k.shape[0])
    name, share = "flash_attn::flash_attn_varlen_func", seen(sizes, causal, window_size)
    result, sums = attention(name, [q, k, v], (heads, k.shape[1]), (width, v.shape[-1]), sizes, share)
    return (result, sums, None) if return_attn_probs else result


def _second(function: Any, place: int, count: int) -> Any:
    """A function whose last tensors are packed in one. place: the dimension; count: tensors before it."""
    return lambda *given, **keywords: function(*given[:count], *given[count].unbind(place), *given[count + 1 :], **keywords)


def _third(q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, *_: Any, **keywords: Any) -> Any:
    """Attention as the third release calls it."""
    return flash_attn_func(q, k, v, 0.0, softmax_scale, causal, keywords.get("window_size", _ALL))


def _third_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *_: Any, **keywords: Any) -> Any:
    """Attention of packed sequences as the third release calls it."""
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, **keywords)


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Tokens that a mask leaves, where they were, the ends of sequences, and the longest one."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    ends = functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, ends, int(lengths.max()), lengths


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Tokens at their places in a padded batch."""
    result = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return result.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def index_first_axis(values: Any, indices: Any) -> Any:
    """Some rows."""
    return values[indices]


def index_put_first_axis(values: Any, indices: Any, size: int) -> Any:
    """Rows at their places."""
    return values.new_zeros(size, *values.shape[1:]).index_copy(0, indices, values)


def apply_rotary_emb(x: Any, cos: Any, sin: Any, *_: Any, **__: Any) -> Any:
    """Rotary embeddings of tensors with shape (samples, sequence, heads, width)."""
    return rotated("flash_attn::apply_rotary_emb", x, cos, sin)


def _normed(x: Any, weight: Any, bias: Any = None, residual: Any = None, *_: Any, prenorm: bool = False, **__: Any) -> Any:
    """`layer_norm_fn` and `rms_norm_fn`."""
    result = norm("flash_attn::layer_norm_fn", x, weight, bias, residual)
    if residual is None:
        return (result, x) if prenorm else result
    return result if prenorm else result[0]


def swiglu(x: Any, y: Any) -> Any:
    """The gated activation of two tensors."""
    return elementwise("flash_attn::swiglu", x, y)


class FlashCrossEntropyLoss(LossModule):
    """`flash_attn.losses.cross_entropy.CrossEntropyLoss`."""

    kernel = "flash_attn::cross_entropy"


class _AttentionMask:
    """A mask of xformers. causal: whether keys after a query are masked. lengths: ends of packed sequences, if any."""

    causal = False
    ends: Any = None
    window = _ALL

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def from_seqlens(cls, q_seqlen: Any, kv_seqlen: Any = None, **_: Any) -> Any:
        """The mask of packed sequences."""
        made = cls()
        made.ends = [torch.tensor([0, *one]).cumsum(0).int().cuda() for one in (q_seqlen, kv_seqlen or q_seqlen)]
        return made

    def make_causal(self) -> Any:
        """The same mask, without later keys."""
        made = LowerTriangularMask()
        made.ends, made.window = self.ends, self.window
        return made

    def make_local_attention(self, window_size: int) -> Any:
        """The same mask, without keys that are far before a query."""
        made = self.make_causal()
        made.window = (window_size - 1, 0)
        return made

    make_causal_from_bottomright = make_causal
    make_local_attention_from_bottomright = make_local_attention


class LowerTriangularMask(_AttentionMask):
    """The causal mask."""

    causal = True


def memory_efficient_attention(query: Any, key: Any, value: Any, attn_bias: Any = None, *_: Any, **__: Any) -> Any:
    """Attention of tensors with shape (samples, sequence, heads, width), or with groups of heads before the heads."""
    samples, queries, width = query.shape[0], query.shape[1], query.shape[-1]
    count, key_count = (one.shape[2:-1].numel() for one in (query, key))
    is_mask = isinstance(attn_bias, _AttentionMask)
    ends = attn_bias.ends if is_mask else None
    sizes = sizes_of_lengths(ends[0], ends[1], queries, key.shape[1]) if ends else Sizes(samples, queries, key.shape[1])
    tensors = [query, key, value, *([attn_bias] if isinstance(attn_bias, torch.Tensor) else [])]
    share = seen(sizes, attn_bias.causal, attn_bias.window) if is_mask else 1.0
    name = "xformers::memory_efficient_attention"
    return attention(name, tensors, (count, key_count), (width, value.shape[-1]), sizes, share)[0]


class PackedSwiGLU(nn.Module):
    """`xformers.ops.SwiGLU`: two products of the input, in one weight if packed, their gated product, and a third product."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, **_: Any
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias)

    def forward(self, x: Any) -> Any:
        """The feed-forward network."""
        return self.w3(elementwise("xformers::silu_mul", *self.w12(x).chunk(2, -1)))


_VARLEN: Final[Any] = flash_attn_varlen_func
_ATTENTION: Final[dict[str, Any]] = {
    "flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func,
    "flash_attn_qkvpacked_func": _second(flash_attn_func, 2, 0), "flash_attn_kvpacked_func": _second(flash_attn_func, 2, 1),
    "flash_attn_varlen_qkvpacked_func": lambda qkv, ends, most, *given, **keywords: _VARLEN(
        *qkv.unbind(1), ends, ends, most, most, *given, **keywords
    ),
    "flash_attn_varlen_kvpacked_func": _second(flash_attn_varlen_func, 1, 1),
}  # fmt: skip
_OTHERS: Final = ("flash_attn_with_kvcache", "_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward",
                  "_flash_attn_varlen_backward")  # fmt: skip
_ATTENTION.update({name: not_captured(f"flash_attn.{name}") for name in _OTHERS})
_RMS: Final = norm_type("RMSNorm", "flash_attn::rms_norm")
_NORMS: Final = {"layer_norm_fn": _normed, "rms_norm_fn": _normed, "RMSNorm": _RMS}
_BIASES: Final = {
    "AttentionBias": _AttentionMask, "LowerTriangularMask": LowerTriangularMask, "BlockDiagonalMask": _AttentionMask,
    "BlockDiagonalCausalMask": LowerTriangularMask, "LowerTriangularFromBottomRightMask": LowerTriangularMask,
}  # fmt: skip
_FMHA: Final = {"memory_efficient_attention": memory_efficient_attention, **_BIASES}
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "flash_attn": _ATTENTION, "flash_attn.flash_attn_interface": _ATTENTION,
    "flash_attn.bert_padding": {
        "unpad_input": unpad_input, "pad_input": pad_input, "index_first_axis": index_first_axis,
        "index_put_first_axis": index_put_first_axis,
    },
    "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
    "flash_attn.ops.rms_norm": {"RMSNorm": _RMS, "rms_norm": lambda x, weight, *_: norm(_RMS.kernel, x, weight)},
    "flash_attn.ops.layer_norm": {
        "dropout_add_layer_norm": lambda x, residual, weight, bias, *_, prenorm=False, **__: _normed(
            x, weight, bias, residual, prenorm=prenorm
        )
    },
    "flash_attn.ops.triton.layer_norm": _NORMS, "flash_attn.ops.triton.rotary": {"apply_rotary": apply_rotary_emb},
    "flash_attn.ops.activations": {"swiglu": swiglu},
    "flash_attn.losses.cross_entropy": {"CrossEntropyLoss": FlashCrossEntropyLoss},
    "flash_attn_interface": {
        "flash_attn_func": _third, "flash_attn_varlen_func": _third_varlen,
        "flash_attn_with_kvcache": _ATTENTION["flash_attn_with_kvcache"],
    },
    "xformers": {}, "xformers.ops": {
        **_FMHA, "SwiGLU": PackedSwiGLU, "rms_norm": lambda x, weight, *_: norm("xformers::rms_norm", x, weight),
    },
    "xformers.ops.fmha": _FMHA, "xformers.ops.fmha.attn_bias": _BIASES,
}  # fmt: skip
