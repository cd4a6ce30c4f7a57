"""Stands in for Transformer Engine: products in 8 bits where a script chooses them, with the casts before them."""

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
    Sizes,
    apply_to_tensors,
    attention,
    elementwise,
    multi_tensor_kernel,
    norm,
    norm_type,
    optimizer_type,
    product,
    rotated,
    seen,
    sizes_of_lengths,
)
from scaleproof.validator.capture.packages.operator import launch, like, update

_PACKAGE: Final = "transformer_engine"
_FP8, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
# Recipes, innermost last; None where products are not in 8 bits.
_recipes: list[Any] = [None]
# Activations of which the first product has two halves.
_GATED: Final = ("geglu", "reglu", "swiglu", "qgeglu", "glu")
_NORMS: Final = {
    "RMSNorm": norm_type("RMSNorm", f"{_PACKAGE}::rmsnorm"),
    "LayerNorm": norm_type("LayerNorm", f"{_PACKAGE}::layernorm", has_bias=True),
}
# The dimension of weights that tensor-parallel ranks share.
_DIVIDED: Final[Mapping[Any, int | None]] = {"column": 0, "row": 1, None: None}


class Recipe:
    """A recipe; methods such as delayed() say whether it is of that kind."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: name in type(self).__name__.lower()


_RECIPES: Final = {
    name: type(name, (Recipe,), {})
    for name in ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
}


@contextlib.contextmanager
def autocast(enabled: bool = True, recipe: Any = None, fp8_recipe: Any = None, **_: Any) -> Iterator[None]:
    """Products within are in 8 bits."""
    _recipes.append((recipe or fp8_recipe or _RECIPES["DelayedScaling"]()) if enabled else None)
    try:
        yield
    finally:
        _recipes.pop()


def fp8_model_init(enabled: bool = True, **_: Any) -> contextlib.AbstractContextManager[None]:
    """Refuses parameters in 8 bits."""
    if enabled:
        raise RunError("parameters in 8 bits (fp8_model_init) are not captured; leave it out, parameters then have 16 bits")
    return contextlib.nullcontext()


def _cast(values: torch.Tensor, recipe: Any, dtype: torch.dtype = _FP8) -> list[torch.Tensor]:
    """A matrix in 8 bits, as it is and transposed."""
    rows = values.reshape(-1, values.shape[-1])
    if type(recipe).__name__ == "Float8CurrentScaling":
        launch(f"{_PACKAGE}::compute_amax", [rows], [((1,), torch.float32)])
    return launch(f"{_PACKAGE}::cast_transpose", [rows], [(rows.shape, dtype), (rows.shape[::-1], dtype)])


def _gemm(left: torch.Tensor, right: torch.Tensor, sizes: tuple[int, int, int], dtype: torch.dtype, *bias: torch.Tensor) -> Any:
    """A product of two matrices in layouts that the kernel takes, of sizes (rows, columns, inner)."""
    work = product(*sizes, narrow=left.dtype in (_FP8, _GRADIENT))
    return launch(f"{_PACKAGE}::generic_gemm", [left, right, *bias], [(sizes[:2], dtype)], work)[0]


class _Product(torch.autograd.Function):
    """A product with weights. adds: whether their gradient is added to `main_grad`. cached: weights in 8 bits, if there are."""

    @staticmethod
    def forward(ctx: Any, values: Any, weight: Any, bias: Any, adds: bool, cached: Any) -> Any:
        columns, inner = weight.shape
        rows = values.numel() // inner
        ctx.recipe, ctx.adds, ctx.weight, ctx.like = _recipes[-1], adds, weight, like(values)
        left, right, kept = values.reshape(rows, inner), weight, (values, weight)
        if ctx.recipe is not None:
            (left, turned), (right, weights) = _cast(values, ctx.recipe), cached or _cast(weight, ctx.recipe)
            kept = turned, weights
        ctx.save_for_backward(*kept)
        added = () if bias is None else (bias,)
        return _gemm(left, right, (rows, columns, inner), values.dtype, *added).view(*values.shape[:-1], columns)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        values, weights = ctx.saved_tensors
        (columns, inner), rows = ctx.weight.shape, gradient.numel() // ctx.weight.shape[0]
        shape, dtype = ctx.like
        left = turned = gradient.reshape(rows, columns)
        if ctx.recipe is not None:
            left, turned = _cast(gradient, ctx.recipe, _GRADIENT)
        of_values = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_values = _gemm(left, weights, (rows, inner, columns), dtype).view(shape)
        if ctx.needs_input_grad[1]:
            sizes, into = (columns, inner, rows), getattr(ctx.weight, "main_grad", None) if ctx.adds else None
            if into is None:
                of_weight = _gemm(turned, values.view(-1, values.shape[-1]), sizes, ctx.weight.dtype)
            else:
                work = product(*sizes, narrow=ctx.recipe is not None)
                update(f"{_PACKAGE}::generic_gemm", [turned, values, into], [into], work)
                ctx.weight.grad_added_to_main_grad, of_weight = True, torch.empty_like(ctx.weight)
        if ctx.needs_input_grad[2]:
            of_bias = launch(f"{_PACKAGE}::bgrad", [gradient], [((columns,), gradient.dtype)])[0]
        return of_values, of_weight, of_bias, None, None


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
    if kind == "copy":
        return values.view_as(values)
    if kind == "reduce":
        result = values.clone()
        dist.all_reduce(result, group=group)
    elif kind == "gather":
        result = values.new_empty(first * size, *others)
        dist.all_gather_into_tensor(result, values, group=group)
    else:
        result = values.new_empty(first // size, *others)
        dist.reduce_scatter_tensor(result, values, group=group)
    return result


_multiply: Final[Any] = _Product.apply
_communicate: Final[Any] = _Communicates.apply


class _Module(nn.Module):
    """A module with products, and perhaps a norm before. settings: as scripts give them; many have no effect here."""

    def __init__(self, settings: Mapping[str, Any], normed: int | None = None) -> None:
        super().__init__()
        self.settings, self.tp_group, self.cached = settings, settings.get("tp_group"), dict[str, Any]()
        self.place: Any = {"device": settings.get("device") or "cuda", "dtype": settings.get("params_dtype")}
        if normed is not None:
            made = _NORMS[settings.get("normalization", "LayerNorm")](normed, **self.place)
            self.layer_norm_weight, self.layer_norm_bias, self.kernel = made.weight, made.bias, made.kernel

    def set_tensor_parallel_group(self, group: Any) -> None:
        """Sets the group of tensor parallelism."""
        self.tp_group = group

    def set_context_parallel_group(self, *_: Any, **__: Any) -> None:
        """Refuses context parallelism."""
        raise RunError("context parallelism of Transformer Engine is not captured; capture with one rank for each sequence")

    def add(self, name: str, columns: int, inner: int, bias: bool, mode: Any) -> None:
        """Adds weights. mode: 'column' or 'row' for those that ranks share."""
        group, shape = self.tp_group, [columns, inner]
        if (divided := _DIVIDED[mode]) is not None:
            shape[divided] //= int(self.settings.get("tp_size", 1)) if group is None else dist.get_world_size(group)
        self.register_parameter(f"{name}weight", nn.Parameter(torch.empty(shape, **self.place)))
        self.register_parameter(f"{name}bias", nn.Parameter(torch.zeros(shape[0], **self.place)) if bias else None)

    def normed(self, values: torch.Tensor) -> torch.Tensor:
        """The norm."""
        result: torch.Tensor = norm(self.kernel, values, self.layer_norm_weight, self.layer_norm_bias)
        return result

    def multiplied(self, values: torch.Tensor, name: str, mode: Any, first: Any) -> torch.Tensor:
        """A product with the weights of a name. mode: see `add`. first: whether this is the first microbatch, whose weights in
        8 bits serve the others; None if they are cast each time."""
        weight, bias, settings = getattr(self, f"{name}weight"), getattr(self, f"{name}bias"), self.settings
        divides = self.tp_group is not None and mode is not None and dist.get_world_size(self.tp_group) > 1
        kinds = ("gather", "scatter") if settings.get("sequence_parallel") else ("copy", "reduce")
        if divides and mode == "column":
            values = _communicate(values, kinds[0], self.tp_group)
        if first is not None and _recipes[-1] is not None and (first or name not in self.cached):
            self.cached[name] = _cast(weight.detach(), _recipes[-1])
        cached = self.cached.get(name) if first is not None else None
        if torch.is_autocast_enabled("cuda"):
            values = values.to(torch.get_autocast_dtype("cuda"))
        added = None if settings.get("return_bias") else bias
        made: torch.Tensor = _multiply(values, weight, added, settings.get("fuse_wgrad_accumulation", False), cached)
        return _communicate(made, kinds[1], self.tp_group) if divides and mode == "row" else made


class TELinear(_Module):
    """`transformer_engine.pytorch.Linear`; has_norm: `LayerNormLinear`."""

    has_norm = False

    def __init__(self, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(settings, in_features if self.has_norm else None)
        self.in_features, self.out_features, self.mode = in_features, out_features, settings.get("parallel_mode")
        self.add("", out_features, in_features, bias, self.mode)

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product; and the bias, and the norm, where the script wants them."""
        values = self.normed(inp) if self.has_norm else inp
        result: list[Any] = [self.multiplied(values, "", self.mode, is_first_microbatch)]
        result += [self.bias] if self.settings.get("return_bias") else []
        result += [values] if self.settings.get("return_layernorm_output") else []
        return result[0] if len(result) == 1 else tuple(result)


class LayerNormLinear(TELinear):
    """`transformer_engine.pytorch.LayerNormLinear`."""

    has_norm = True


class LayerNormMLP(_Module):
    """`transformer_engine.pytorch.LayerNormMLP`."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(settings, hidden_size)
        self.activation = settings.get("activation", "gelu")
        self.halves = 2 if self.activation in _GATED else 1
        self.modes = ("column", "row") if settings.get("set_parallel_mode") else (None, None)
        self.add("fc1_", self.halves * ffn_hidden_size, hidden_size, bias, self.modes[0])
        self.add("fc2_", hidden_size, ffn_hidden_size, bias, self.modes[1])

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The feed-forward network of the norm."""
        inner = self.multiplied(self.normed(inp), "fc1_", self.modes[0], is_first_microbatch)
        active = elementwise(f"{_PACKAGE}::{self.activation}", inner, last=inner.shape[-1] // self.halves)
        made = self.multiplied(active, "fc2_", self.modes[1], is_first_microbatch)
        return (made, self.fc2_bias) if self.settings.get("return_bias") else made


class GroupedLinear(_Module):
    """`transformer_engine.pytorch.GroupedLinear`: a product for each group of rows."""

    def __init__(
        self, num_gemms: int, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any
    ) -> None:
        super().__init__(settings)
        for place in range(num_gemms):
            self.add(f"{place}_", out_features, in_features, bias, settings.get("parallel_mode"))

    def forward(self, inp: Any, m_splits: Sequence[int], is_first_microbatch: Any = None, **_: Any) -> Any:
        """The products."""
        parts = inp.reshape(-1, inp.shape[-1]).split([int(size) for size in m_splits])
        made = [self.multiplied(part, f"{place}_", None, is_first_microbatch) for place, part in enumerate(parts)]
        result = torch.cat(made).view(*inp.shape[:-1], made[0].shape[-1])
        return (result, None) if self.settings.get("return_bias") else result


class DotProductAttention(_Module):
    """`transformer_engine.pytorch.DotProductAttention`."""

    def __init__(self, num_attention_heads: int, kv_channels: Any, *_: Any, **settings: Any) -> None:
        super().__init__(settings)

    def forward(self, query_layer: Any, key_layer: Any, value_layer: Any, attention_mask: Any = None, **given: Any) -> Any:
        """Attention, with heads and width in one dimension."""
        chosen = {"qkv_format": "sbhd", "attn_mask_type": "causal", "window_size": (-1, -1)}
        for options in (self.settings, given):
            chosen |= {name: options[name] for name in chosen if options.get(name) is not None}
        *places, heads, width = query_layer.shape
        *key_places, key_heads, _ = key_layer.shape
        if chosen["qkv_format"] == "thd":
            sizes = sizes_of_lengths(given["cu_seqlens_q"], given["cu_seqlens_kv"], places[0], key_places[0])
        else:
            at = 1 if chosen["qkv_format"] == "bshd" else 0
            sizes = Sizes(places[1 - at], places[at], key_places[at])
        share = seen(sizes, "causal" in str(chosen["attn_mask_type"]), chosen["window_size"])  # type: ignore[arg-type]
        tensors, widths = [query_layer, key_layer, value_layer], (width, value_layer.shape[-1])
        made, _ = attention(f"{_PACKAGE}::fused_attn", tensors, (heads, key_heads), widths, sizes, share)
        return made.flatten(-2)


class SelfAttention(_Module):
    """`transformer_engine.pytorch.MultiheadAttention` of a sequence with itself."""

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: Any = None, **settings: Any) -> None:
        super().__init__(settings)
        self.width, groups = kv_channels or hidden_size // num_attention_heads, settings.get("num_gqa_groups")
        self.shares = [num_attention_heads, groups or num_attention_heads, groups or num_attention_heads]
        modes = ("column", "row") if settings.get("set_parallel_mode") else (None, None)
        first, last = ({**settings, "parallel_mode": mode, "return_bias": False} for mode in modes)
        kind = LayerNormLinear if settings.get("input_layernorm") else TELinear
        self.qkv = kind(hidden_size, sum(self.shares) * self.width, **first)
        self.core_attention = DotProductAttention(num_attention_heads, self.width, **settings)
        self.proj = TELinear(num_attention_heads * self.width, hidden_size, **last)

    def forward(self, hidden_states: Any, attention_mask: Any = None, is_first_microbatch: Any = None, **given: Any) -> Any:
        """The attention."""
        mixed = self.qkv(hidden_states, is_first_microbatch).unflatten(-1, (-1, self.width))
        part = mixed.shape[-2] // sum(self.shares)
        query, key, value = mixed.split([part * share for share in self.shares], -2)
        if (angles := given.pop("rotary_pos_emb", None)) is not None:
            of_query, of_key = angles if isinstance(angles, tuple) else (angles, angles)
            query, key = rotate(query, of_query), rotate(key, of_key)
        return self.proj(self.core_attention(query, key, value, attention_mask, **given), is_first_microbatch)


class TransformerLayer(_Module):
    """`transformer_engine.pytorch.TransformerLayer` without attention to another sequence."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int, *_: Any, **settings: Any) -> None:
        super().__init__(settings)
        if settings.get("layer_type", "encoder") != "encoder":
            raise RunError("layers with attention to another sequence (layer_type) of Transformer Engine are not captured")
        names = {"attn_mask_type": "self_attn_mask_type", "qkv_format": "attn_input_format"}
        own = settings | {name: settings[given] for name, given in names.items() if given in settings}
        self.self_attention = SelfAttention(hidden_size, num_attention_heads, **own | {"input_layernorm": True})
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, **settings)

    def forward(self, hidden_states: Any, attention_mask: Any = None, is_first_microbatch: Any = None, **given: Any) -> Any:
        """The layer."""
        kept = {name: value for name, value in given.items() if not name.startswith(("enc_dec", "encoder"))}
        added = hidden_states + self.self_attention(hidden_states, attention_mask, is_first_microbatch, **kept)
        return added + self.layernorm_mlp(added, is_first_microbatch)


def rotate(t: Any, freqs: Any, *_: Any, **__: Any) -> Any:
    """`apply_rotary_pos_emb`."""
    return rotated(f"{_PACKAGE}::fused_rope", t, freqs)


def _checkpoint(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """`transformer_engine.pytorch.checkpoint`."""
    own = ("distribute_saved_activations", "get_rng_state_tracker", "tp_group", "use_reentrant", "preserve_rng_state")
    kept = {name: value for name, value in keywords.items() if name not in own}
    return checkpoint(function, *arguments, use_reentrant=False, **kept)


_FORMAT: Final = types.SimpleNamespace(E4M3="E4M3", E5M2="E5M2", HYBRID="HYBRID")
_CASTS: Final = {"fp8_autocast": autocast, "autocast": autocast, "fp8_model_init": fp8_model_init}
_ATTENTION: Final = {"DotProductAttention": DotProductAttention, "MultiheadAttention": SelfAttention}
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "transformer_engine": {}, "transformer_engine.common": {},
    "transformer_engine.common.recipe": {**_RECIPES, "Recipe": Recipe, "Format": _FORMAT},
    "transformer_engine.pytorch": {
        **_NORMS, **_CASTS, **_ATTENTION, "Linear": TELinear, "LayerNormLinear": LayerNormLinear, "LayerNormMLP": LayerNormMLP,
        "GroupedLinear": GroupedLinear, "TransformerLayer": TransformerLayer, "checkpoint": _checkpoint,
    },
    "transformer_engine.pytorch.optimizers": {
        "FusedAdam": optimizer_type("FusedAdam", f"{_PACKAGE}::multi_tensor_adam"), "multi_tensor_applier": apply_to_tensors,
        "multi_tensor_scale": multi_tensor_kernel(_PACKAGE, "scale"),
    },
    "transformer_engine.pytorch.attention": {**_ATTENTION, "apply_rotary_pos_emb": rotate},
    "transformer_engine.pytorch.fp8": _CASTS,
}  # fmt: skip
