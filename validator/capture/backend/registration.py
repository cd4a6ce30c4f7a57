"""Registers the kernels with PyTorch's dispatcher, and random initialisation on the CPU that skips large tensors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torchgen  # type: ignore[import-untyped]

from scaleproof.validator.capture.backend.attention import scaled_dot_product_attention
from scaleproof.validator.capture.backend.kernels import Kernels
from scaleproof.validator.capture.backend.values import COMPUTED_FLOATS

# Operators that reach the kernels only by name, though no kernel of theirs for CUDA is listed.
_ALSO: Final = (
    "convolution", "convolution_backward", "copy_", "record_stream", "is_pinned", "_pin_memory", "_foreach_norm.Scalar",
)  # fmt: skip
_FUNCTION: Final = re.compile(r"- func: ([\w.]+)\(")
_DISPATCH: Final = re.compile(r"\s+([\w, ]+): ")
_COMPOSITE: Final = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_INITIALISES: Final = ("normal_", "uniform_")
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_libraries: list[Any] = []


def register(kernels: Kernels) -> None:
    """Makes all operators on CUDA tensors call `kernels`."""
    everything = _library("_")
    everything.fallback(kernels, "CUDA")
    named = _library("aten")
    _libraries.extend((everything, named))
    with warnings.catch_warnings():
        # kernels replace others on purpose
        warnings.simplefilter("ignore", UserWarning)
        for name in (*_with_cuda_kernels(), *_ALSO):
            # a composite kernel would come before the fallback
            if name in _ALSO or any(_has_kernel(f"aten::{name}", key) for key in _COMPOSITE):
                named.impl(name, _calling(kernels, name), "CUDA")
        for key in ("AutogradCUDA", "CUDA"):
            named.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)
        for name in _INITIALISES:
            named.impl(name, _of_small_tensors(name), "CPU", with_keyset=True)


def _library(name: str) -> Any:
    """A library of kernels for operators of a namespace, or of all."""
    untyped: Any = torch.library.Library
    return untyped(name, "IMPL")


def _with_cuda_kernels() -> Iterator[str]:
    """Names of operators with a kernel for CUDA, from the list that PyTorch ships."""
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := _FUNCTION.match(line):
            name = found[1]
        elif name and (found := _DISPATCH.match(line)) and "CUDA" in (key.strip() for key in found[1].split(",")):
            yield name
            name = ""


def _calling(kernels: Kernels, name: str) -> Callable[..., Any]:
    operator = _operator(name)
    return lambda *arguments, **keywords: kernels(operator, *arguments, **keywords)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _of_small_tensors(name: str) -> Callable[..., Any]:
    """The CPU's kernel, which does nothing to many floats: nobody reads them, and their pages stay untouched."""
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def fill(keys: Any, tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        if tensor.numel() > COMPUTED_FLOATS and tensor.dtype.is_floating_point:
            return tensor
        return kernel.call_boxed(keys, tensor, *arguments, **keywords)

    return fill
