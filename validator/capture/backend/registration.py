"""Registers the kernels with PyTorch's dispatcher, and random initialisation on the CPU that skips large tensors."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torchgen  # type: ignore[import-untyped]
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_map

from scaleproof.validator.capture.backend.attention import scaled_dot_product_attention
from scaleproof.validator.capture.backend.kernels import Kernels, on_meta
from scaleproof.validator.capture.backend.schemas import schema_of, tensors_of
from scaleproof.validator.capture.backend.shapes import SHAPES
from scaleproof.validator.capture.backend.values import COMPUTED_FLOATS, INVENTED_VALUE, returned

# Operators that reach the kernels only by name, though no kernel of theirs for CUDA is listed.
_ALSO: Final = (
    "convolution", "convolution_backward", "copy_", "record_stream", "is_pinned", "_pin_memory", "_foreach_norm.Scalar",
)  # fmt: skip
_FUNCTION: Final = re.compile(r"- func: ([\w.]+)\(")
_DISPATCH: Final = re.compile(r"\s+([\w, ]+): ")
_DELEGATE: Final = re.compile(r"\s+structured_delegate: ([\w.]+)")
_COMPOSITE: Final = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_INITIALISES: Final = ("normal_", "uniform_")
# Operators of optimizers, and of clipping gradients, on the host.
_UPDATES: Final = (
    "zero_", "fill_.Scalar", "mul_.Tensor", "mul.Tensor", "add_.Tensor", "add.Tensor", "div_.Tensor", "div.Tensor", "sqrt",
    "sqrt_", "lerp_.Scalar", "addcmul_", "addcdiv_", "sign", "linalg_vector_norm", "_fused_adam_", "_fused_adamw_",
    "_fused_sgd_",
)  # fmt: skip
_RECURRENT: Final = tuple(
    f"{kind}.{overload}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for overload in ("input", "data")
)
_NUMBERS: Final = (bool, int, float, complex)
_SPARSE: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_libraries: list[Any] = []


def register(kernels: Kernels) -> None:
    """Makes all operators on CUDA tensors call `kernels`."""
    everything = _library("_")
    everything.fallback(kernels, "CUDA")
    everything.fallback(_of_sparse, "SparseCUDA")
    named = _library("aten")
    _libraries.extend((everything, named))
    with warnings.catch_warnings():
        # kernels replace others on purpose
        warnings.simplefilter("ignore", UserWarning)
        for key, own, also in (("CUDA", kernels, _ALSO), ("SparseCUDA", _of_sparse, ())):
            for name in (*_with_kernels(key), *also):
                # a composite kernel would come before the fallback
                if name in also or any(_has_kernel(f"aten::{name}", composite) for composite in _COMPOSITE):
                    named.impl(name, functools.partial(own, _operator(name)), key)
        for key in ("AutogradCUDA", "CUDA"):
            named.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)
            for name in _RECURRENT:
                # by a product for all steps of the input, and one for each step of the state
                named.impl(name, decomposition_table[_operator(name)], key)
        for name, shapes in SHAPES.items():
            named.impl(name, shapes, "Meta")
        for name in _INITIALISES:
            named.impl(name, _of_small_tensors(name), "CPU", with_keyset=True)
        for name in _UPDATES:
            named.impl(name, _of_small_updates(name), "CPU", with_keyset=True)


def _library(name: str) -> Any:
    """A library of kernels for operators of a namespace, or of all."""
    untyped: Any = torch.library.Library
    return untyped(name, "IMPL")


def _of_sparse(operator: Any, *arguments: Any, **keywords: Any) -> Any:
    """An operator on sparse tensors, which are made of dense ones, whose operators are recorded."""
    dense, other, *_ = (*arguments, None)
    if operator._schema.name == "aten::add_" and not dense.is_sparse:
        return dense.index_add_(0, other._indices()[0], other._values(), alpha=keywords.get("alpha", 1))
    if operator._schema.name == "aten::sparse_mask" and not dense.is_sparse:
        rows = dense.index_select(0, other._indices()[0])
        return torch.sparse_coo_tensor(other._indices(), rows, other.shape, is_coalesced=True)
    return operator.redispatch(_SPARSE, *arguments, **keywords)


def _with_kernels(key: str) -> Iterator[str]:
    """Names of operators with a kernel for a key of PyTorch's dispatcher, such as CUDA, their own or one that they share, from
    the list that PyTorch ships."""
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    own, shared, name = dict[str, None](), dict[str, str](), ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := _FUNCTION.match(line):
            name = found[1]
        elif found := _DELEGATE.match(line):
            shared[name] = found[1]
        elif (found := _DISPATCH.match(line)) and key in (one.strip() for one in found[1].split(",")):
            own[name] = None
    yield from own
    yield from (name for name, of in shared.items() if of in own)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _of_small_tensors(name: str) -> Callable[..., Any]:
    """The CPU's kernel, which does nothing to many floats: nobody reads them, and their pages stay untouched."""
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def fill(keys: Any, tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        if _is_large(tensor):
            return tensor
        return kernel.call_boxed(keys, tensor, *arguments, **keywords)

    return fill


def _of_small_updates(name: str) -> Callable[..., Any]:
    """The CPU's kernel, which without autograd computes nothing of many floats: parameters, gradients and states that a script
    has on the host then have memory that is never touched."""
    kernel, operator = torch.library.get_kernel(f"aten::{name}", "CPU"), _operator(name)
    schema = schema_of(operator)

    takes_tensor = [isinstance(argument.type, torch.TensorType) for argument in operator._schema.arguments]

    def update(keys: Any, *arguments: Any, **keywords: Any) -> Any:
        tensors = tensors_of((arguments, keywords))
        if torch.is_grad_enabled() or not any(map(_is_large, tensors)):
            # PyTorch passes numbers in place of tensors, which kernels do not take
            given = (
                torch.tensor(one, dtype=torch.result_type(tensors[0], one)) if is_tensor and isinstance(one, _NUMBERS) else one
                for one, is_tensor in zip(arguments, takes_tensor, strict=False)
            )
            return kernel.call_boxed(keys, *given, **keywords)
        if written := schema.writes(arguments, keywords):
            return returned(schema, written)
        result = operator(*tree_map(on_meta, arguments), **keywords)
        if not result.dim():
            return torch.full((), INVENTED_VALUE, dtype=result.dtype)
        return torch.empty_strided(result.size(), result.stride(), dtype=result.dtype)

    return update


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.numel() > COMPUTED_FLOATS and tensor.dtype.is_floating_point
