"""Stands in for Transformer Engine: products in 8 bits where a script chooses them, with the casts before them."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from scaleproof.simulator.captured.known_kernels import attention_work
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.model.operators import Product
from scaleproof.simulator.model.torch_operators import Work
from scaleproof.validator.capture.packages.functions import (
    Sizes,
    apply_to_tensors,
    attention,
    elementwise,
    multi_tensor_kernel,
    multi_tensor_l2norm,
    norm,
    norm_type,
    not_captured,
    optimizer_type,
    rotated,
    seen,
    sizes_of_lengths,
)
from scaleproof.validator.capture.packages.operator import (
    MOVES,
    Call,
    Result,
    launch,
    launch_with_gradients,
    like,
    update,
)

_PACKAGE: Final = "transformer_engine"
# Rows of products in 8 bits come in multiples of it.
_ALIGNED: Final = 16
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
        return lambda: name.replace("_", "") in type(self).__name__.lower()


_RECIPES: Final = {
    name: type(name, (Recipe,), {})
    for name in ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
}


@contextlib.contextmanager
def autocast(
    enabled: bool = True, recipe: Any = None, fp8_recipe: Any = None, fp8_group: Any = None, amax_reduction_group: Any = None,
    **_: Any,
) -> Iterator[None]:  # fmt: skip
    """Products within are in 8 bits. With delayed scaling, ranks of a group, or all, share the largest values of their tensors
    at the end, and after the backward pass."""
    chosen = (recipe or fp8_recipe or _RECIPES["DelayedScaling"]()) if enabled else None
    _recipes.append(chosen)
    try:
        yield
    finally:
        _recipes.pop()
    if isinstance(chosen, _RECIPES["DelayedScaling"]) and len(_recipes) == 1 and torch.is_grad_enabled():
        _Amaxes.group = fp8_group or amax_reduction_group
        _Amaxes.reduce(forward=True)


class _Amaxes:
    """Largest values of tensors that were cast since they were reduced: their numbers in the forward and the backward pass."""

    group: Any = None
    counts: ClassVar[dict[bool, int]] = {True: 0, False: 0}

    @classmethod
    def add(cls, forward: bool) -> None:
        """Counts one; the first of a backward pass is reduced at its end."""
        cls.counts[forward] += 1
        if not forward and cls.counts[False] == 1:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: cls.reduce(forward=False))

    @classmethod
    def reduce(cls, forward: bool) -> None:
        """Reduces them."""
        count, cls.counts[forward] = cls.counts[forward], 0
        if count and dist.is_initialized() and dist.get_world_size(cls.group) > 1:
            dist.all_reduce(torch.empty(count, device="cuda"), dist.ReduceOp.MAX, cls.group)


class FP8GlobalStateManager:
    """State of products in 8 bits, as scripts read it."""

    is_fp8_enabled = staticmethod(lambda: _recipes[-1] is not None)
    get_fp8_recipe = staticmethod(lambda: _recipes[-1])
    is_fp8_calibration = is_first_fp8_module = staticmethod(lambda: False)
    set_skip_fp8_weight_update_tensor = reset = staticmethod(lambda *_: None)


def fp8_model_init(enabled: bool = True, **_: Any) -> contextlib.AbstractContextManager[None]:
    """Refuses parameters in 8 bits."""
    if enabled:
        raise RunError("parameters in 8 bits (fp8_model_init) are not captured; leave it out, parameters then have 16 bits")
    return contextlib.nullcontext()


def _cast(values: torch.Tensor, recipe: Any, dtype: torch.dtype = _FP8) -> list[torch.Tensor]:
    """A matrix in 8 bits, as it is and transposed."""
    rows = values.reshape(-1, values.shape[-1])
    if isinstance(recipe, _RECIPES["Float8CurrentScaling"]):
        launch(f"{_PACKAGE}::compute_amax", [rows], [((1,), torch.float32)])
    elif isinstance(recipe, _RECIPES["DelayedScaling"]):
        _Amaxes.add(forward=dtype is _FP8)
    return launch(f"{_PACKAGE}::cast_transpose", [rows], [(rows.shape, dtype), (rows.shape[::-1], dtype)])


def _gemm(
    tensors: Sequence[torch.Tensor], sizes: Sequence[tuple[int, int, int]], results: Sequence[Result], into: Any = None
) -> list[torch.Tensor]:
    """Products, in layouts that the kernel takes, of sizes (rows, columns, inner) each. into: tensors to which they are added
    instead of being results."""
    products = tuple(Product(*one) for one in sizes if all(one))
    work = Work(products=products, narrow=tensors[0].dtype in (_FP8, _GRADIENT)) if products else MOVES
    name = f"{_PACKAGE}::{'generic_gemm' if len(sizes) == 1 else 'grouped_gemm'}"
    if into is None:
        return launch(name, tensors, results, work)
    update(name, [*tensors, *into], into, work)
    return []


class _Product(torch.autograd.Function):
    """Products of groups of rows with weights each. rows: of each group. adds: whether gradients of weights are added to
    `main_grad`. cached: weights in 8 bits, if there are. parameters: weights, and their biases, if any."""

    @staticmethod
    def forward(ctx: Any, values: Any, rows: Sequence[int], adds: bool, cached: Any, *parameters: Any) -> Any:
        weights, biases = parameters[: len(rows)], parameters[len(rows) :]
        columns, inner = weights[0].shape
        ctx.recipe, ctx.adds, ctx.weights, ctx.like, ctx.rows = _recipes[-1], adds, weights, like(values), rows
        left, rights, kept = values.reshape(-1, inner), list(weights), [values, *weights]
        if ctx.recipe is not None:
            (left, turned), pairs = _cast(values, ctx.recipe), cached or [_cast(one, ctx.recipe) for one in weights]
            rights, kept = [pair[0] for pair in pairs], [turned, *(pair[1] for pair in pairs)]
        ctx.save_for_backward(*kept)
        sizes, result = [(one, columns, inner) for one in rows], ((*values.shape[:-1], columns), values.dtype)
        return _gemm([left, *rights, *biases], sizes, [result])[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        values, *weights = ctx.saved_tensors
        (columns, inner), count, needs = ctx.weights[0].shape, len(ctx.rows), ctx.needs_input_grad[4:]
        left = turned = gradient.reshape(-1, columns)
        if ctx.recipe is not None:
            left, turned = _cast(gradient, ctx.recipe, _GRADIENT)
        of_values, of_parameters = None, [None] * len(needs)
        if ctx.needs_input_grad[0]:
            (of_values,) = _gemm([left, *weights], [(rows, inner, columns) for rows in ctx.rows], [ctx.like])
        if needs[0]:
            sizes, into = [(columns, inner, rows) for rows in ctx.rows], None
            if ctx.adds:
                into = [one.main_grad for one in ctx.weights]
            made: list[Any] = _gemm([turned, values], sizes, [like(one) for one in ctx.weights], into)
            for one in ctx.weights if ctx.adds else ():
                one.grad_added_to_main_grad = True
                made.append(torch.empty_like(one))
            of_parameters[:count] = made
        if len(needs) > count and needs[count]:
            results = [((columns,), gradient.dtype)] * count
            of_parameters[count:] = launch(f"{_PACKAGE}::bgrad", [gradient], results)  # type: ignore[assignment]
        return of_values, None, None, None, *of_parameters


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
        self.settings, self.cached = settings, dict[str, Any]()
        self.set_tensor_parallel_group(settings.get("tp_group"))
        self.cp_group, self.cp_comm_type = settings.get("cp_group"), settings.get("cp_comm_type") or "p2p"
        self.sequence_parallel, self.eps = settings.get("sequence_parallel", False), settings.get("eps", 1e-5)
        self.save_original_input, self.fp8_meta = False, dict[str, Any]()
        self.place: Any = {"device": settings.get("device"), "dtype": settings.get("params_dtype")}
        if self.place["device"] is None:
            self.place["device"] = "cuda"
        if normed is not None:
            made = _NORMS[settings.get("normalization", "LayerNorm")](
                normed, **self.place, sequence_parallel=self.sequence_parallel
            )
            self.layer_norm_weight, self.layer_norm_bias, self.kernel = made.weight, made.bias, made.kernel

    def set_tensor_parallel_group(self, group: Any) -> None:
        """Sets the group of tensor parallelism."""
        self.tp_group = group
        self.tp_size = dist.get_world_size(group) if group is not None else self.settings.get("tp_size", 1)

    def set_context_parallel_group(self, group: Any, ranks: Any = None, stream: Any = None, kind: str = "p2p") -> None:
        """Sets the group that shares sequences, of all parts."""
        for module in self.modules():
            if isinstance(module, _Module):
                module.cp_group, module.cp_comm_type = group, kind

    def add(self, name: str, columns: int, inner: int, bias: bool, mode: Any) -> None:
        """Adds a weight and a bias. name: with '{}' for 'weight' or 'bias'. mode: 'column' or 'row' where ranks share them."""
        shape, divided = [columns, inner], _DIVIDED[mode]
        if divided is not None:
            shape[divided] //= self.tp_size
        weight: Any = nn.Parameter(torch.empty(shape, **self.place))
        added: Any = nn.Parameter(torch.zeros(shape[0], **self.place)) if bias else None
        self.register_parameter(name.format("weight"), weight)
        self.register_parameter(name.format("bias"), added)
        # by which frameworks find parameters that ranks share
        for one in [weight, *([added] if bias and mode == "column" else [])]:
            one.tensor_model_parallel, one.partition_dim, one.partition_stride = True, divided or 0, 1
        if bias and mode == "row":
            added.sequence_parallel = self.sequence_parallel

    def normed(self, values: torch.Tensor) -> torch.Tensor:
        """The norm."""
        result: torch.Tensor = norm(self.kernel, values, self.layer_norm_weight, self.layer_norm_bias)
        return result

    def multiplied(
        self, values: torch.Tensor, names: Sequence[str], mode: Any, first: Any, rows: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Products with the weights of some names. mode: see `add`. first: whether this is the first microbatch, whose weights
        in 8 bits serve the others; None if they are cast each time. rows: of each weight, all if None."""
        weights, biases = ([getattr(self, name.format(kind)) for name in names] for kind in ("weight", "bias"))
        divides = self.tp_group is not None and mode is not None and self.tp_size > 1
        kinds = ("gather", "scatter") if self.sequence_parallel else ("copy", "reduce")
        if divides and mode == "column":
            values = _communicate(values, kinds[0], self.tp_group)
        if first is not None and _recipes[-1] is not None and (first or names[0] not in self.cached):
            self.cached[names[0]] = [_cast(one.detach(), _recipes[-1]) for one in weights]
        cached = self.cached.get(names[0]) if first is not None else None
        if torch.is_autocast_enabled("cuda"):
            values = values.to(torch.get_autocast_dtype("cuda"))
        added = [] if self.settings.get("return_bias") or biases[0] is None else biases
        rows = rows or [values.numel() // values.shape[-1]]
        adds = self.settings.get("fuse_wgrad_accumulation", False) and hasattr(weights[0], "main_grad")
        made: torch.Tensor = _multiply(values, rows, adds, cached, *weights, *added)
        return _communicate(made, kinds[1], self.tp_group) if divides and mode == "row" else made


class TELinear(_Module):
    """`transformer_engine.pytorch.Linear`; has_norm: `LayerNormLinear`."""

    has_norm = False

    def __init__(self, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any) -> None:
        super().__init__(settings, in_features if self.has_norm else None)
        self.parallel_mode, self.use_bias = settings.get("parallel_mode"), bias
        self.add("{}", out_features, in_features, bias, self.parallel_mode)
        weight: Any = self.weight
        self.out_features, self.in_features = weight.shape

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The product; and the bias, and the norm, where the script wants them."""
        values = self.normed(inp) if self.has_norm else inp
        result: list[Any] = [self.multiplied(values, ["{}"], self.parallel_mode, is_first_microbatch)]
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
        self.add("fc1_{}", self.halves * ffn_hidden_size, hidden_size, bias, self.modes[0])
        self.add("fc2_{}", hidden_size, ffn_hidden_size, bias, self.modes[1])

    def forward(self, inp: Any, is_first_microbatch: Any = None, **_: Any) -> Any:
        """The feed-forward network of the norm."""
        inner = self.multiplied(self.normed(inp), ["fc1_{}"], self.modes[0], is_first_microbatch)
        active = elementwise(f"{_PACKAGE}::{self.activation}", inner, last=inner.shape[-1] // self.halves)
        made = self.multiplied(active, ["fc2_{}"], self.modes[1], is_first_microbatch)
        return (made, self.fc2_bias) if self.settings.get("return_bias") else made


class GroupedLinear(_Module):
    """`transformer_engine.pytorch.GroupedLinear`: a product for each group of rows, by one kernel."""

    def __init__(
        self, num_gemms: int, in_features: int, out_features: int, *_: Any, bias: bool = True, **settings: Any
    ) -> None:
        super().__init__(settings)
        self.num_gemms, self.names, self.use_bias = num_gemms, [f"{{}}{place}" for place in range(num_gemms)], bias
        for name in self.names:
            self.add(name, out_features, in_features, bias, settings.get("parallel_mode"))

    def forward(self, inp: Any, m_splits: Sequence[int], is_first_microbatch: Any = None, **_: Any) -> Any:
        """The products."""
        result = self.multiplied(inp, self.names, None, is_first_microbatch, [int(size) for size in m_splits])
        biases = [getattr(self, name.format("bias")) for name in self.names]
        return (result, biases) if self.settings.get("return_bias") else result


class _Padding(nn.Module):
    """`Fp8Padding`: rows of groups in multiples of a number; back: `Fp8Unpadding`."""

    back = False

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.align = align_size or _ALIGNED

    def forward(self, inp: torch.Tensor, m_splits: Sequence[int]) -> Any:
        """The rows, and their numbers."""
        numbers = [-(-size // self.align) * self.align for size in m_splits]
        result = (sum(m_splits if self.back else numbers), *inp.shape[1:]), inp.dtype
        kernel = Call(f"{_PACKAGE}::fused_multi_row_{'un' * self.back}padding", [result], keeps=[])
        made = inp if numbers == list(m_splits) else launch_with_gradients(kernel, inp)[0]
        return made if self.back else (made, numbers)


def _passed(group: Any, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
    """Sends tensors to the next rank of a group. Returns what comes from the one before, and works to wait for."""
    ranks, own = dist.get_process_group_ranks(group), dist.get_rank(group)
    received = [torch.empty_like(one) for one in tensors]
    sends = [dist.P2POp(dist.isend, one, ranks[(own + 1) % len(ranks)], group) for one in tensors]
    receives = [dist.P2POp(dist.irecv, one, ranks[own - 1], group) for one in received]
    return received, dist.batch_isend_irecv(sends + receives) if sends else []


class _Ring(torch.autograd.Function):
    """Attention over a sequence of which ranks have parts: keys and values go around while they are attended to, and come back
    with their gradients. works: of one part, forward and backward; sums: sizes of the logarithms of its sums."""

    @staticmethod
    def forward(ctx: Any, group: Any, works: Sequence[Work], sums: Sequence[int], query: Any, key: Any, value: Any) -> Any:
        ctx.group, ctx.work = group, works[1]
        result = [((*query.shape[:-1], value.shape[-1]), query.dtype), (sums, torch.float32)]
        parts: list[torch.Tensor] = []
        present = torch.cat([key.flatten(), value.flatten()])
        for left in reversed(range(dist.get_world_size(group))):
            received, waits = _passed(group, *([present] if left else []))
            parts += launch(f"{_PACKAGE}::fused_attn", [query, present], result, works[0])
            for one in waits:
                one.wait()
            present = received[0] if left else present
        made = launch(f"{_PACKAGE}::correct_context_parallel_outputs", parts, result)
        ctx.save_for_backward(query, key, value, *made)
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, made, sums = ctx.saved_tensors
        present = torch.cat([key.flatten(), value.flatten()])
        of_query, of_pair, parts = torch.zeros_like(query), None, dist.get_world_size(ctx.group)
        for place in range(parts):
            # keys and values, and their gradients so far, which come back to the rank that has them
            sent = [*([present] if place < parts - 1 else []), *([of_pair] if of_pair is not None else [])]
            received, waits = _passed(ctx.group, *sent)
            read, results = [gradient, query, present, made, sums], [like(query), like(present)]
            own, pair = launch(f"{_PACKAGE}::fused_attn_backward", read, results, ctx.work)
            of_query.add_(own)
            for one in waits:
                one.wait()
            of_pair = pair if of_pair is None else received[-1].add_(pair)
            present = received[0] if place < parts - 1 else present
        of_key, of_value = of_pair.split([key.numel(), value.numel()])  # type: ignore[union-attr]
        return None, None, None, of_query, of_key.view_as(key), of_value.view_as(value)


class _Exchanges(torch.autograd.Function):
    """All-to-all between parts of a sequence and parts of heads. gathers: whether sequences are whole afterwards."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any, gathers: bool) -> Any:
        ctx.group, ctx.gathers, ranks = group, gathers, dist.get_world_size(group)
        length, samples, heads, width = values.shape
        if gathers:
            shape, sent = (
                (length * ranks, samples, heads // ranks, width),
                values.view(length, samples, ranks, -1, width).movedim(2, 0),
            )
        else:
            shape, sent = (length // ranks, samples, heads * ranks, width), values
        received = torch.empty_like(sent, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, sent.contiguous(), group=group)
        made = received if gathers else received.view(ranks, -1, samples, heads, width).movedim(0, 2)
        return made.reshape(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _Exchanges.apply(gradient, ctx.group, not ctx.gathers), None, None  # type: ignore[no-untyped-call]


_ring: Final[Any] = _Ring.apply
_exchange: Final[Any] = _Exchanges.apply


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
        if self.cp_group is not None and dist.get_world_size(self.cp_group) > 1:
            return self._shared(tensors, chosen["qkv_format"], sizes, share).flatten(-2)
        made, _ = attention(f"{_PACKAGE}::fused_attn", tensors, (heads, key_heads), widths, sizes, share)
        return made.flatten(-2)

    def _shared(self, tensors: Sequence[torch.Tensor], layout: Any, sizes: Sizes, share: float) -> Any:
        """Attention over sequences that ranks share. Raises RunError for what is not captured."""
        group, kind, (heads, width) = self.cp_group, self.cp_comm_type, tensors[0].shape[-2:]
        ranks, key_heads, value_width = dist.get_world_size(group), tensors[1].shape[-2], tensors[2].shape[-1]
        if kind == "p2p":
            lengths = round(sizes.queries), round(sizes.keys)
            forward = attention_work(
                sizes.samples, heads, *lengths, width, key_heads=key_heads, value_width=value_width, seen=share
            )
            works = forward, dataclasses.replace(forward, backward=True)
            return _ring(group, works, (round(sizes.samples), heads, lengths[0]), *tensors)
        if layout != "sbhd" or kind not in ("a2a", "all_gather"):
            raise RunError(f"context parallelism of Transformer Engine by {kind} of layout {layout} is not captured; use p2p")
        query, key, value = tensors
        if kind == "all_gather":
            key, value = (_communicate(one, "gather", group) for one in (key, value))
            whole, own = sizes._replace(keys=ranks * sizes.keys), (heads, key_heads)
        else:
            query, key, value = (_exchange(one, group, True) for one in tensors)
            whole = sizes._replace(queries=ranks * sizes.queries, keys=ranks * sizes.keys)
            own = heads // ranks, max(1, key_heads // ranks)
        made, _ = attention(f"{_PACKAGE}::fused_attn", [query, key, value], own, (width, value_width), whole, share)
        return made if kind == "all_gather" else _exchange(made, group, False)


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


class CudaRNGStatesTracker:
    """`transformer_engine.pytorch.distributed.CudaRNGStatesTracker`: states by names, which change nothing."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}

    def reset(self) -> None:
        """Forgets all states."""
        self.states_ = {}

    def get_states(self) -> dict[str, Any]:
        """All states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Sets all states."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Adds a state."""
        self.states_[name] = seed

    def fork(self, name: str = "") -> contextlib.AbstractContextManager[None]:
        """A context with a state."""
        return contextlib.nullcontext()


def _types(*names: str) -> dict[str, Any]:
    """Types of which nothing is, such as those of tensors in 8 bits."""
    return {name: type(name, (), {}) for name in names}


def _refused(module: str, *names: str) -> dict[str, Any]:
    return {name: not_captured(f"{_PACKAGE}.pytorch.{module}.{name}") for name in names}


_FORMAT: Final = types.SimpleNamespace(E4M3="E4M3", E5M2="E5M2", HYBRID="HYBRID")
_CASTS: Final = {"fp8_autocast": autocast, "autocast": autocast, "fp8_model_init": fp8_model_init}
_STATE: Final = {**_CASTS, "FP8GlobalStateManager": FP8GlobalStateManager}
_ATTENTION: Final = {"DotProductAttention": DotProductAttention, "MultiheadAttention": SelfAttention}
_NAMES: Final = {
    **_NORMS, **_CASTS, **_ATTENTION, "Linear": TELinear, "LayerNormLinear": LayerNormLinear, "LayerNormMLP": LayerNormMLP,
    "GroupedLinear": GroupedLinear, "TransformerLayer": TransformerLayer, "checkpoint": _checkpoint, "Fp8Padding": _Padding,
    "Fp8Unpadding": type("Fp8Unpadding", (_Padding,), {"back": True}),
}  # fmt: skip
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    # what later versions add, scripts would find missing
    "transformer_engine": {"__version__": "2.8.0"}, "transformer_engine.common": {},
    "transformer_engine.common.recipe": {**_RECIPES, "Recipe": Recipe, "Format": _FORMAT},
    "transformer_engine.pytorch": _NAMES,
    "transformer_engine.pytorch.optimizers": {
        "FusedAdam": optimizer_type("FusedAdam", f"{_PACKAGE}::multi_tensor_adam"), "multi_tensor_applier": apply_to_tensors,
        "FusedSGD": optimizer_type("FusedSGD", f"{_PACKAGE}::multi_tensor_sgd", "momentum_buffer"),
        "multi_tensor_scale": multi_tensor_kernel(_PACKAGE, "scale"), "multi_tensor_l2norm": multi_tensor_l2norm,
    },
    "transformer_engine.pytorch.attention": {**_ATTENTION, "apply_rotary_pos_emb": rotate},
    "transformer_engine.pytorch.attention.rope": {
        "apply_rotary_pos_emb": rotate, **_refused("attention.rope", "apply_fused_qkv_rotary_pos_emb"),
    },
    "transformer_engine.pytorch.fp8": _STATE, "transformer_engine.pytorch.quantization": _STATE,
    "transformer_engine.pytorch.distributed": {
        "checkpoint": _checkpoint, "CudaRNGStatesTracker": CudaRNGStatesTracker, "get_all_rng_states": dict,
        "activation_recompute_forward": lambda *_, **__: contextlib.nullcontext(),
        "is_fp8_activation_recompute_enabled": lambda: False,
    },
    "transformer_engine.pytorch.module.base": {
        "TransformerEngineBaseModule": _Module, "get_workspace": lambda: None,
        "get_dummy_wgrad": lambda shape, dtype, **_: torch.empty(shape, dtype=dtype, device="cuda"),
    },
    "transformer_engine.pytorch.router": _refused(
        "router", "fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function"
    ),
    "transformer_engine.pytorch.ops": _types("Sequential", "FusibleOperation"),
    "transformer_engine.pytorch.tensor": _types("QuantizedTensor", "Quantizer"),
    "transformer_engine.pytorch.tensor.float8_tensor": _types("Float8Tensor"),
    "transformer_engine.pytorch.tensor.mxfp8_tensor": _types("MXFP8Tensor"),
    "transformer_engine.pytorch.tensor.float8_blockwise_tensor": _types("Float8BlockwiseQTensor"),
    "transformer_engine.pytorch.float8_tensor": _types("Float8Tensor"),
}  # fmt: skip
