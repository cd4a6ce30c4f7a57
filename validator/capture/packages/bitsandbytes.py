"""Stands in for bitsandbytes: weights in 4 bits, which products read in 16 bits again, and optimizers with states in 8 bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from scaleproof.validator.capture.packages.functions import optimizer_type
from scaleproof.validator.capture.packages.operator import launch

# Values that share a scale: weights in 4 bits, their scales in 8 bits, and states in 8 bits.
_BLOCK, _NESTED_BLOCK, _STATE_BLOCK = 64, 256, 256


class QuantState:
    """Scales of weights in 4 bits: one for each block, themselves in 8 bits with scales of their own if `nested`."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, block: int, nested: bool, kind: str) -> None:
        self.shape, self.dtype, self.blocksize, self.nested, self.quant_type = shape, dtype, block, nested, kind
        self.absmax: Any = None
        self.state2: Any = None

    def scales(self) -> list[torch.Tensor]:
        """The tensors."""
        return [self.absmax, *([self.state2] if self.nested else [])]


class Params4bit(nn.Parameter):
    """Weights that are in 4 bits once they are on the device."""

    def __new__(
        cls, data: Any = None, requires_grad: bool = False, quant_state: Any = None, blocksize: int = _BLOCK,
        compress_statistics: bool = True, quant_type: str = "fp4", quant_storage: torch.dtype = torch.uint8, **_: Any,
    ) -> Any:  # fmt: skip
        """Weights as they are."""
        made: Any = torch.Tensor._make_subclass(cls, data if data is not None else torch.empty(0), requires_grad)
        made.quant_state, made.blocksize, made.compress_statistics = quant_state, blocksize, compress_statistics
        made.quant_type, made.quant_storage, made.bnb_quantized = quant_type, quant_storage, quant_state is not None
        return made

    def cuda(self, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        """See torch."""
        return self.to("cuda" if device is None else device)

    def to(self, *arguments: Any, **keywords: Any) -> Any:
        """Copies weights to the device, and rounds them there."""
        this: Any = self
        device, dtype, *_ = torch._C._nn._parse_to(*arguments, **keywords)
        if device is None or device.type != "cuda" or this.bnb_quantized:
            moved: Any = super().to(*arguments, **keywords)
            return Params4bit(moved, quant_state=this.quant_state, quant_type=this.quant_type)
        values = this.data.to(device=device, dtype=dtype or this.dtype)
        this.data, this.quant_state = quantize_4bit(
            values, this.blocksize, this.compress_statistics, this.quant_type, this.quant_storage
        )
        this.bnb_quantized = True
        return this


def quantize_4bit(
    values: Any, blocksize: int = _BLOCK, compress_statistics: bool = False, quant_type: str = "fp4",
    quant_storage: torch.dtype = torch.uint8, **_: Any,
) -> tuple[torch.Tensor, QuantState]:  # fmt: skip
    """Values in 4 bits, and their scales."""
    state = QuantState(values.shape, values.dtype, blocksize, compress_statistics, quant_type)
    blocks = math.ceil(values.numel() / blocksize)
    length = math.ceil(values.numel() / 2 / quant_storage.itemsize)
    packed, scales = launch("bitsandbytes::quantize_4bit", [values], [((length, 1), quant_storage), ((blocks,), torch.float32)])
    state.absmax = scales
    if compress_statistics:
        nested = math.ceil(blocks / _NESTED_BLOCK)
        results = [((blocks,), torch.uint8), ((nested,), torch.float32)]
        state.absmax, state.state2 = launch("bitsandbytes::quantize_blockwise", [scales], results)
    return packed, state


def dequantize_4bit(values: torch.Tensor, quant_state: QuantState, *_: Any, **__: Any) -> torch.Tensor:
    """Values in 16 bits again."""
    result = quant_state.shape, quant_state.dtype
    return launch("bitsandbytes::dequantize_4bit", [values, *quant_state.scales()], [result])[0]


class _Multiplies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Any, weight: Any, state: Any, bias: Any) -> Any:
        ctx.save_for_backward(weight)
        ctx.state = state
        return functional.linear(values, dequantize_4bit(weight, state).to(values.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (weight,) = ctx.saved_tensors
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[3] else None
        of_values = gradient @ dequantize_4bit(weight, ctx.state).to(gradient.dtype) if ctx.needs_input_grad[0] else None
        return of_values, None, None, of_bias


_multiply: Final[Any] = _Multiplies.apply


def matmul_4bit(values: Any, weight: Any, quant_state: Any, bias: Any = None, **_: Any) -> Any:
    """A product with transposed weights in 4 bits, as modules call it with `weight.t()`."""
    return _multiply(values, weight, quant_state, bias)


class Linear4bit(nn.Linear):
    """`bitsandbytes.nn.Linear4bit`."""

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, compute_dtype: Any = None,
        compress_statistics: bool = True, quant_type: str = "fp4", quant_storage: torch.dtype = torch.uint8, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_features, output_features, bias, device)
        kinds: Any = {"compress_statistics": compress_statistics, "quant_type": quant_type, "quant_storage": quant_storage}
        self.weight = Params4bit(self.weight.data, **kinds)
        self.compute_dtype = compute_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product."""
        weight: Any = self.weight
        values = x.to(self.compute_dtype) if self.compute_dtype is not None else x
        bias = self.bias.to(values.dtype) if self.bias is not None else None
        made: torch.Tensor = matmul_4bit(values, weight.data, weight.quant_state, bias)
        return made.to(x.dtype)


_STATES: Final = {
    "Adam": ("state1", "state2"), "AdamW": ("state1", "state2"), "LAMB": ("state1", "state2"), "Lion": ("state1",),
    "SGD": ("state1",), "RMSprop": ("state1",), "Adagrad": ("state1",),
}  # fmt: skip
_OPTIMIZERS: Final = {
    name: optimizer_type(name, f"bitsandbytes::{name.lower()}_step", *states, block=block)
    for kind, states in _STATES.items()
    for prefix in ("", "Paged")
    for name, block in ((f"{prefix}{kind}8bit", _STATE_BLOCK), (f"{prefix}{kind}32bit", 0), (f"{prefix}{kind}", 0))
}
_MODULES: Final = {
    "Linear4bit": Linear4bit, "LinearNF4": functools.partial(Linear4bit, quant_type="nf4"), "Params4bit": Params4bit,
}  # fmt: skip
_FUNCTIONS: Final = {"quantize_4bit": quantize_4bit, "dequantize_4bit": dequantize_4bit, "QuantState": QuantState}
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "bitsandbytes": {"matmul_4bit": matmul_4bit, "supported_torch_devices": {"cuda", "cpu"}},
    "bitsandbytes.nn": _MODULES, "bitsandbytes.nn.modules": _MODULES,
    "bitsandbytes.optim": _OPTIMIZERS, "bitsandbytes.functional": _FUNCTIONS,
}  # fmt: skip
