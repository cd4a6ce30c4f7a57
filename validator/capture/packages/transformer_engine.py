"""Stands in for Transformer Engine: products in 8 bits where a script asks for them, with the casts before them."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.packages.functions import (
    FusedOptimizer,
    Norm,
    Sizes,
    attention,
    elementwise,
    launched,
    product,
    rotated,
    seen,
    sizes_of_lengths,
    update_tensors,
)
from scaleproof.validator.capture.packages.operator import Call, launch, launch_with_gradients, like, update

_FP8: Final = torch.float8_e4m3fn
_GRADIENT: Final = torch.float8_e5m2
# Recipes, innermost last; None where products are not in 8 bits.
_recipes: list[Any] = [None]
_GATED: Final = ("geglu", "reglu", "swiglu", "qgeglu", "glu", "srelu_glu")


class _Recipe:
    """A recipe. current: whether scales are those of the present values, which are read once more for them."""

    current = False

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # kinds of recipes are asked for by delayed(), mxfp8() and so on
        return lambda: name in type(self).__name__.lower()


class DelayedScaling(_Recipe):
    """Scales of steps before."""


class Float8CurrentScaling(_Recipe):
    """Scales of the present values."""

    current = True


class Float8BlockScaling(_Recipe):
    """Scales of blocks."""


class MXFP8BlockScaling(_Recipe):
    """Scales of blocks of 32 values."""


@contextlib.contextmanager
def autocast(enabled: bool = True, recipe: Any = None, fp8_recipe: Any = None, **_: Any) -> Iterator[None]:
    """Products within are in 8 bits."""
    _recipes.append((recipe or fp8_recipe or DelayedScaling()) if enabled else None)
    try:
        yield
    finally:
        _recipes.pop()


def fp8_model_init(enabled: bool = True, **_: Any) -> contextlib.AbstractContextManager[None]:
    """Refuses parameters in 8 bits."""
    if enabled:
        raise RunError("parameters in 8 bits (fp8_model_init) are not captured; leave it out, parameters then have 16 bits")
    return contextlib.nullcontext()


def _cast(values: torch.Tensor, dtype: torch.dtype = _FP8) -> list[torch.Tensor]:
    """A matrix in 8 bits, as it is and transposed."""
    rows = values.reshape(-1, values.shape[-1])
    if _recipes[-1] is not None and _recipes[-1].current:
        launched("transformer_engine::compute_amax", rows, 1, dtype=torch.float32)
    return launch("transformer_engine::cast_transpose", [rows], [(rows.shape, dtype), (rows.shape[::-1], dtype)])


def _gemm(left: torch.Tensor, right: torch.Tensor, sizes: tuple[int, int, int], dtype: torch.dtype, *bias: torch.Tensor) -> Any:
    """A product of two matrices in layouts that the kernel takes, of sizes (rows, columns, inner)."""
    work = product(*sizes, narrow=left.dtype in (_FP8, _GRADIENT))
    return launch("transformer_engine::generic_gemm", [left, right, *bias], [(sizes[:2], dtype)], work)[0]


class _Product(torch.autograd.Function):
    """A product with weights. cached: weights in 8 bits from a microbatch before."""

    @staticmethod
    def forward(ctx: Any, values: Any, weight: Any, bias: Any, into: Any, cached: Any) -> Any:
        inner, rows = values.shape[-1], values.numel() // values.shape[-1]
        columns = weight.shape[0]
        ctx.narrow, ctx.into, ctx.dtype, ctx.shape = _recipes[-1] is not None, into, values.dtype, values.shape
        ctx.has_bias, ctx.weight, ctx.recipe = bias is not None, weight, _recipes[-1]
        added = () if bias is None else (bias,)
        if not ctx.narrow:
            ctx.save_for_backward(values, weight)
            made = _gemm(values.reshape(rows, inner), weight, (rows, columns, inner), values.dtype, *added)
        else:
            (narrow, transposed), (weights, turned) = _cast(values), cached or _cast(weight)
            ctx.save_for_backward(transposed, turned)
            made = _gemm(narrow, weights, (rows, columns, inner), values.dtype, *added)
        return made.view(*values.shape[:-1], columns)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        values, weight = ctx.saved_tensors
        columns, inner = ctx.weight.shape
        rows = gradient.numel() // columns
        flat = straight = gradient.reshape(rows, columns)
        if ctx.narrow:
            _recipes.append(ctx.recipe)
            straight, flat = _cast(gradient, _GRADIENT)
            _recipes.pop()
        of_values = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_values = _gemm(straight, weight, (rows, inner, columns), ctx.dtype).view(ctx.shape)
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(ctx, flat, values, (columns, inner, rows))
        if ctx.has_bias and ctx.needs_input_grad[2]:
            of_bias = launched("transformer_engine::bgrad", gradient, columns)
        return of_values, of_weight, of_bias, None, None


def _weight_gradient(ctx: Any, gradient: Any, values: Any, sizes: tuple[int, int, int]) -> Any:
    """The gradient of weights, which is added where the script keeps a sum of them."""
    kept = getattr(ctx.weight, "main_grad", None) if ctx.into else None
    if kept is None:
        return _gemm(gradient, values.reshape(-1, sizes[1]) if not ctx.narrow else values, sizes, ctx.weight.dtype)
    update("transformer_engine::generic_gemm", [gradient, values], [kept], product(*sizes, narrow=ctx.narrow))
    ctx.weight.grad_added_to_main_grad = True
    return torch.empty_like(ctx.weight)


class _Communicates(torch.autograd.Function):
    """Communication of a tensor-parallel group before or after a product. kind: 'copy' sums gradients; 'reduce' sums results;
    'gather' and 'scatter' do the same along the sequence, of which each rank has a part."""

    @staticmethod
    def forward(ctx: Any, values: Any, kind: str, group: Any) -> Any:
        ctx.kind, ctx.group = kind, group
        return _communicated(values, kind, group)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        opposite = {"copy": "reduce", "reduce": "copy", "gather": "scatter", "scatter": "gather"}[ctx.kind]
        return _communicated(gradient.contiguous(), opposite, ctx.group), None, None


def _communicated(values: torch.Tensor, kind: str, group: Any) -> torch.Tensor:
    size, (first, *others) = dist.get_world_size(group), values.shape
    if kind == "reduce":
        result = values.clone()
        dist.all_reduce(result, group=group)
        return result
    if kind == "copy":
        return values.view_as(values)
    result = values.new_empty(first * size if kind == "gather" else first // size, *others)
    if kind == "gather":
        dist.all_gather_into_tensor(result, values, group=group)
    else:
        dist.reduce_scatter_tensor(result, values, group=group)
    return result


class _Module(nn.Module):
    """A module with products. settings: those of Transformer Engine; others have no effect on what is recorded."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.tp_group = settings.get("tp_group")
        self.cached: dict[str, Any] = {}

    def set_tensor_parallel_group(self, group: Any) -> None:
        """Sets the group of tensor parallelism."""
        self.tp_group = group

    def set_context_parallel_group(self, *_: Any, **__: Any) -> None:
        """Refuses context parallelism."""
        raise RunError("context parallelism of Transformer Engine is not captured; capture with one rank for each sequence")

    def add_weights(self, name: str, columns: int, inner: int, bias: bool, divided: int | None = None) -> None:
        """Adds weights. divided: the dimension that tensor-parallel ranks share."""
        size = int(self.settings.get("tp_size", 1))
        if self.tp_group is not None:
            size = dist.get_world_size(self.tp_group)
        shape = [columns, inner]
        if divided is not None:
            shape[divided] //= size
        place: dict[str, Any] = {"device": self.settings.get("device") or "cuda", "dtype": self.settings.get("params_dtype")}
        self.register_parameter(f"{name}weight", nn.Parameter(torch.empty(shape, **place)))
        self.register_parameter(f"{name}bias", nn.Parameter(torch.zeros(shape[0], **place)) if bias else None)

    def multiplied(self, values: torch.Tensor, name: str, mode: Any, first: Any = None, adds: bool = True) -> torch.Tensor:
        """A product with the weights of a name. mode: 'column' or 'row' for weights that ranks share. first: whether this is
        the first microbatch, whose weights in 8 bits serve the others; None if they are cast each time."""
        weight, bias = getattr(self, f"{name}weight"), getattr(self, f"{name}bias")
        divides = self.tp_group is not None and mode is not None and dist.get_world_size(self.tp_group) > 1
        is_sequence = bool(self.settings.get("sequence_parallel"))
        if divides and mode == "column":
            values = _communicate(values, "gather" if is_sequence else "copy", self.tp_group)
        cached = None
        if first is not None and _recipes[-1] is not None:
            if first or name not in self.cached:
                self.cached[name] = _cast(weight.detach())
            cached = self.cached[name]
        into = self.settings.get("fuse_wgrad_accumulation", False)
        if torch.is_autocast_enabled("cuda"):
            values = values.to(torch.get_autocast_dtype("cuda"))
        made: torch.Tensor = _multiply(values, weight, bias if adds else None, into, cached)
        if divides and mode == "row":
            made = _communicate(made, "scatter" if is_sequence else "reduce", self.tp_group)
        return made


_multiply: Final[Any] = _Product.apply
_communicate: Final[Any] = _Communicates.apply
_DIVIDED: Final[Mapping[Any, int | None]] = {"column": 0, "row": 1, None: None}


class Linear(_Module):
    """`transformer_engine.pytorch.Linear`."""

    def __init__(self, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.in_features, self.out_features, self.mode = in_features, out_features, settings.get("parallel_mode")
        self.add_weights("", out_features, in_features, bias, _DIVIDED[self.mode])

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product, and the bias where the script adds it itself."""
        returns = self.settings.get("return_bias", False)
        made = self.multiplied(inp, "", self.mode, is_first_microbatch, adds=not returns)
        return (made, self.bias) if returns else made


class RMSNorm(Norm):
    """`transformer_engine.pytorch.RMSNorm`."""

    kernel = "transformer_engine::rmsnorm"


class LayerNorm(Norm):
    """`transformer_engine.pytorch.LayerNorm`."""

    kernel, has_bias = "transformer_engine::layernorm", True


def _norm_of(settings: Mapping[str, Any], size: int) -> Norm:
    kind = RMSNorm if settings.get("normalization", "LayerNorm") == "RMSNorm" else LayerNorm
    return kind(size, device=settings.get("device") or "cuda", dtype=settings.get("params_dtype"))


class _Normed(_Module):
    """A module that begins with a norm, whose weights are its own."""

    def add_norm(self, size: int) -> None:
        """Adds the norm."""
        made = _norm_of(self.settings, size)
        self.layer_norm_weight, self.layer_norm_bias, self.kernel = made.weight, made.bias, made.kernel

    def normed(self, values: torch.Tensor) -> torch.Tensor:
        """The norm."""
        kept = [((values.numel() // values.shape[-1], 1 if self.layer_norm_bias is None else 2), torch.float32)]
        tensors = [one for one in (self.layer_norm_weight, self.layer_norm_bias) if one is not None]
        return launch_with_gradients(Call(self.kernel, (like(values),), kept=kept), values, *tensors)[0]


class LayerNormLinear(_Normed):
    """`transformer_engine.pytorch.LayerNormLinear`."""

    def __init__(self, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.mode = settings.get("parallel_mode")
        self.add_norm(in_features)
        self.add_weights("", out_features, in_features, bias, _DIVIDED[self.mode])

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product of the norm; and the norm, and the bias, where the script wants them."""
        settings, normed = self.settings, self.normed(inp)
        returns = settings.get("return_bias", False)
        made = self.multiplied(normed, "", self.mode, is_first_microbatch, adds=not returns)
        result = [made, *([self.bias] if returns else []), *([normed] if settings.get("return_layernorm_output") else [])]
        return made if len(result) == 1 else tuple(result)


class LayerNormMLP(_Normed):
    """`transformer_engine.pytorch.LayerNormMLP`."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.activation = settings.get("activation", "gelu")
        self.add_norm(hidden_size)
        divides = settings.get("set_parallel_mode", False)
        self.modes = ("column", "row") if divides else (None, None)
        doubled = 2 if self.activation in _GATED else 1
        self.add_weights("fc1_", doubled * ffn_hidden_size, hidden_size, bias, _DIVIDED[self.modes[0]])
        self.add_weights("fc2_", hidden_size, ffn_hidden_size, bias, _DIVIDED[self.modes[1]])

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The feed-forward network of the norm."""
        inner = self.multiplied(self.normed(inp), "fc1_", self.modes[0], is_first_microbatch)
        width = inner.shape[-1] // (2 if self.activation in _GATED else 1)
        active = elementwise(f"transformer_engine::{self.activation}", inner, last=width)
        returns = self.settings.get("return_bias", False)
        made = self.multiplied(active, "fc2_", self.modes[1], is_first_microbatch, adds=not returns)
        return (made, self.fc2_bias) if returns else made


class GroupedLinear(_Module):
    """`transformer_engine.pytorch.GroupedLinear`: a product for each group of rows."""

    def __init__(
        self, num_gemms: int, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.count, self.mode = num_gemms, settings.get("parallel_mode")
        for place in range(num_gemms):
            self.add_weights(f"{place}_", out_features, in_features, bias, _DIVIDED[self.mode])

    def forward(self, inp: Any, m_splits: Sequence[int], is_first_microbatch: Any = None, **_: Any) -> Any:
        """The products."""
        parts = inp.reshape(-1, inp.shape[-1]).split([int(size) for size in m_splits])
        made = [self.multiplied(part, f"{place}_", None, is_first_microbatch) for place, part in enumerate(parts)]
        result = torch.cat(made).view(*inp.shape[:-1], made[0].shape[-1])
        return (result, None) if self.settings.get("return_bias", False) else result


class DotProductAttention(_Module):
    """`transformer_engine.pytorch.DotProductAttention`."""

    def __init__(self, num_attention_heads: int, kv_channels: Any, *_: Any, **settings: Any) -> None:
        super().__init__(**settings)

    def forward(self, query_layer: Any, key_layer: Any, value_layer: Any, attention_mask: Any = None, **given: Any) -> Any:
        """Attention, with heads and width in one dimension."""
        layout = given.get("qkv_format") or self.settings.get("qkv_format", "sbhd")
        kind = given.get("attn_mask_type") or self.settings.get("attn_mask_type", "causal")
        window = given.get("window_size") or self.settings.get("window_size") or (-1, -1)
        (*_, heads, width), (*_, key_heads, _) = query_layer.shape, key_layer.shape
        value_width = value_layer.shape[-1]
        places = query_layer.shape[:-2]
        if layout == "thd":
            lengths = given["cu_seqlens_q"], given["cu_seqlens_kv"]
            sizes = sizes_of_lengths(*lengths, query_layer.shape[0], key_layer.shape[0])
        else:
            first, second = places
            sizes = Sizes(first, second, key_layer.shape[1]) if layout == "bshd" else Sizes(second, first, key_layer.shape[0])
        share = seen(sizes, "causal" in kind, window)
        tensors, counts = [query_layer, key_layer, value_layer], (heads, key_heads)
        made, _ = attention("transformer_engine::fused_attn", tensors, counts, (width, value_width), sizes, share)
        return made.reshape(*places, heads * value_width)


class MultiheadAttention(_Module):
    """`transformer_engine.pytorch.MultiheadAttention` of a sequence with itself."""

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: Any = None, **settings: Any) -> None:
        super().__init__(**settings)
        if settings.get("attention_type", "self") != "self":
            raise RunError("attention to another sequence (attention_type) is not captured with Transformer Engine")
        self.width = kv_channels or hidden_size // num_attention_heads
        self.groups = settings.get("num_gqa_groups") or num_attention_heads
        modes = ("column", "row") if settings.get("set_parallel_mode") else (None, None)
        bias, own = settings.pop("bias", True), {**settings, "return_bias": False}
        columns = (num_attention_heads + 2 * self.groups) * self.width
        kind = LayerNormLinear if settings.get("input_layernorm") else Linear
        self.qkv = kind(hidden_size, columns, bias=bias, **{**own, "parallel_mode": modes[0], "return_layernorm_output": False})
        self.core_attention = DotProductAttention(num_attention_heads, self.width, **own)
        self.proj = Linear(num_attention_heads * self.width, hidden_size, bias=bias, **{**own, "parallel_mode": modes[1]})
        self.shares = num_attention_heads, self.groups, self.groups

    def forward(self, hidden_states: Any, attention_mask: Any = None, is_first_microbatch: Any = None, **given: Any) -> Any:
        """The attention."""
        mixed = self.qkv(hidden_states, is_first_microbatch)
        size = mixed.shape[-1] // sum(self.shares)
        query, key, value = (
            part.unflatten(-1, (-1, self.width)) for part in mixed.split([size * share for share in self.shares], -1)
        )
        angles = given.pop("rotary_pos_emb", None)
        if angles is not None:
            of_query, of_key = angles if isinstance(angles, tuple) else (angles, angles)
            query, key = apply_rotary_pos_emb(query, of_query), apply_rotary_pos_emb(key, of_key)
        return self.proj(self.core_attention(query, key, value, attention_mask, **given), is_first_microbatch)


class TransformerLayer(_Module):
    """`transformer_engine.pytorch.TransformerLayer` of an encoder or a decoder without cross attention."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int, *_: Any, **settings: Any) -> None:
        super().__init__(**settings)
        if settings.get("layer_type", "encoder") != "encoder":
            raise RunError("layers with cross attention (layer_type) are not captured with Transformer Engine")
        kinds = {
            "attn_mask_type": settings.get("self_attn_mask_type", "causal"),
            "qkv_format": settings.get("attn_input_format", "sbhd"),
        }
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, **{**settings, **kinds, "input_layernorm": True}
        )
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, **settings)

    def forward(self, hidden_states: Any, attention_mask: Any = None, is_first_microbatch: Any = None, **given: Any) -> Any:
        """The layer."""
        kept = {
            name: value
            for name, value in given.items()
            if name in ("rotary_pos_emb", "window_size", "cu_seqlens_q", "cu_seqlens_kv")
        }
        attended = self.self_attention(hidden_states, attention_mask, is_first_microbatch, **kept)
        added = hidden_states + attended
        return added + self.layernorm_mlp(added, is_first_microbatch)


class FusedAdam(FusedOptimizer):
    """`transformer_engine.pytorch.optimizers.FusedAdam`."""

    kernel = "transformer_engine::multi_tensor_adam"


def apply_rotary_pos_emb(t: Any, freqs: Any, *_: Any, **__: Any) -> Any:
    """Rotary embeddings."""
    return rotated("transformer_engine::fused_rope", t, freqs)


def _checkpoint(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """`transformer_engine.pytorch.checkpoint`."""
    own = ("distribute_saved_activations", "get_rng_state_tracker", "tp_group", "use_reentrant", "preserve_rng_state")
    kept = {name: value for name, value in keywords.items() if name not in own}
    return checkpoint(function, *arguments, use_reentrant=False, **kept)


_RECIPES: Final[Mapping[str, Any]] = {
    "Recipe": _Recipe, "DelayedScaling": DelayedScaling, "Float8CurrentScaling": Float8CurrentScaling,
    "Float8BlockScaling": Float8BlockScaling, "MXFP8BlockScaling": MXFP8BlockScaling,
    "Format": types.SimpleNamespace(E4M3="E4M3", E5M2="E5M2", HYBRID="HYBRID"),
}  # fmt: skip
_OPTIMIZERS: Final = {
    "FusedAdam": FusedAdam, "multi_tensor_applier": lambda kernel, flag, lists, *given: kernel(1 << 16, flag, lists, *given),
    "multi_tensor_scale": update_tensors("transformer_engine::multi_tensor_scale"),
}  # fmt: skip
_PYTORCH: Final = {
    **{one.__name__: one for one in (Linear, LayerNormLinear, LayerNormMLP, GroupedLinear, RMSNorm, LayerNorm, autocast,
                                     DotProductAttention, MultiheadAttention, TransformerLayer, fp8_model_init)},
    "fp8_autocast": autocast, "quantized_model_init": fp8_model_init, "checkpoint": _checkpoint,
}  # fmt: skip
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "transformer_engine": {}, "transformer_engine.pytorch": _PYTORCH, "transformer_engine.common": {},
    "transformer_engine.common.recipe": _RECIPES, "transformer_engine.pytorch.optimizers": _OPTIMIZERS,
    "transformer_engine.pytorch.attention": {
        "DotProductAttention": DotProductAttention, "MultiheadAttention": MultiheadAttention,
        "apply_rotary_pos_emb": apply_rotary_pos_emb,
    },
    "transformer_engine.pytorch.fp8": {"fp8_autocast": autocast, "fp8_model_init": fp8_model_init},
}  # fmt: skip
