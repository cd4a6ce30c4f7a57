"""Stands in for causal_conv1d and mamba_ssm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.nn import functional

from scaleproof.simulator.model.operators import Product
from scaleproof.simulator.model.torch_operators import Work
from scaleproof.validator.capture.packages.functions import Norm, elementwise, norm, not_captured
from scaleproof.validator.capture.packages.operator import UNKNOWN, Call, launch_with_gradients, like


def causal_conv1d_fn(x: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> Any:
    """A convolution of each channel with shape (samples, channels, sequence), and an activation."""
    return elementwise("causal_conv1d::causal_conv1d_fwd", x, weight, *([bias] if bias is not None else []))


def selective_scan_fn(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """The scan of Mamba, of tensors with shape (samples, channels, sequence)."""
    samples, channels, _ = u.shape
    tensors = [one for one in (u, delta, A, B, C, D, z, delta_bias) if one is not None]
    state = (samples, channels, A.shape[-1]), torch.float32
    # it computes more than it moves, in units that have no measured rate
    call = Call("mamba_ssm::selective_scan_fwd", (like(u), state), UNKNOWN, UNKNOWN)
    made, last = launch_with_gradients(call, *tensors)
    return (made, last) if return_last_state else made


def mamba_chunk_scan_combined(
    x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None, z: Any = None, dt_bias: Any = None,
    *_: Any, return_final_states: bool = False, **__: Any,
) -> Any:  # fmt: skip
    """The scan of Mamba-2 by products of chunks, of tensors with shape (samples, sequence, heads, width)."""
    samples, length, heads, width = x.shape
    groups, states = B.shape[2:]
    chunks = samples * -(-length // chunk_size)
    # scores of a chunk, and their product with its values; its states, and what those before it add
    products = (
        Product(chunk_size, chunk_size, states, chunks * groups), Product(chunk_size, width, chunk_size, chunks * heads),
        Product(width, states, chunk_size, chunks * heads), Product(chunk_size, width, states, chunks * heads),
    )  # fmt: skip
    tensors = [one for one in (x, dt, A, B, C, D, z, dt_bias) if one is not None]
    final, kept = ((samples, heads, width, states), torch.float32), ((chunks, heads, width, states), torch.float32)
    work = Work(products=products)
    call = Call("mamba_ssm::mamba_chunk_scan_combined", (like(x), final), work, Work(products=2 * products), (kept,))
    made, last, _kept = launch_with_gradients(call, *tensors)
    return (made, last) if return_final_states else made


def mamba_inner_fn(
    xz: Any, conv1d_weight: Any, conv1d_bias: Any, x_proj_weight: Any, delta_proj_weight: Any, out_proj_weight: Any,
    out_proj_bias: Any, A: Any, B: Any = None, C: Any = None, D: Any = None, *_: Any, **__: Any,
) -> Any:  # fmt: skip
    """A block of Mamba after its first product, of tensors with shape (samples, channels, sequence)."""
    values, z = xz.chunk(2, 1)
    values = causal_conv1d_fn(values, conv1d_weight.flatten(1), conv1d_bias)
    mixed: Any = functional.linear(values.mT, x_proj_weight)
    steps, left, right = torch.split(mixed, [delta_proj_weight.shape[1], A.shape[1], A.shape[1]], -1)
    scanned = selective_scan_fn(values, functional.linear(steps, delta_proj_weight).mT, A, left.mT, right.mT, D, z)
    return functional.linear(scanned.mT, out_proj_weight, out_proj_bias)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Any, conv1d_weight: Any, conv1d_bias: Any, dt_bias: Any, A: Any, D: Any, chunk_size: int, *_: Any,
    rmsnorm_weight: Any = None, outproj_weight: Any = None, outproj_bias: Any = None, ngroups: int = 1,
    return_final_states: bool = False, **__: Any,
) -> Any:  # fmt: skip
    """A block of Mamba-2 after its first product, of tensors with shape (samples, sequence, channels)."""
    heads, convolved = A.shape[0], conv1d_weight.shape[0]
    width = zxbcdt.shape[-1] - convolved - heads
    z, mixed, steps = zxbcdt.split([width, convolved, heads], -1)
    mixed = causal_conv1d_fn(mixed.mT, conv1d_weight, conv1d_bias).mT
    values, left, right = mixed.split([width, (convolved - width) // 2, (convolved - width) // 2], -1)
    parts = values.unflatten(-1, (heads, -1)), steps, A, left.unflatten(-1, (ngroups, -1)), right.unflatten(-1, (ngroups, -1))
    made, last = mamba_chunk_scan_combined(*parts, chunk_size, D, None, dt_bias, return_final_states=True)
    made = elementwise("mamba_ssm::silu_mul", made.flatten(2), z)
    made = norm("mamba_ssm::rms_norm", made, rmsnorm_weight) if rmsnorm_weight is not None else made
    made = functional.linear(made, outproj_weight, outproj_bias) if outproj_weight is not None else made
    return (made, last) if return_final_states else made


class GatedNorm(Norm):
    """`mamba_ssm.ops.triton.layernorm_gated.RMSNorm`, whose input may be multiplied with another one before."""

    kernel = "mamba_ssm::rms_norm"

    def forward(self, values: torch.Tensor, z: Any = None, **_: Any) -> Any:
        """The norm."""
        return norm(self.kernel, values if z is None else elementwise("mamba_ssm::silu_mul", values, z), self.weight)


MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal_conv1d": {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": not_captured("causal_conv1d_update")},
    "mamba_ssm": {},
    "mamba_ssm.ops.selective_scan_interface": {
        "selective_scan_fn": selective_scan_fn, "mamba_inner_fn": mamba_inner_fn,
    },
    "mamba_ssm.ops.triton.ssd_combined": {
        "mamba_chunk_scan_combined": mamba_chunk_scan_combined,
        "mamba_split_conv1d_scan_combined": mamba_split_conv1d_scan_combined,
    },
    "mamba_ssm.ops.triton.selective_state_update": {
        "selective_state_update": not_captured("selective_state_update")
    },
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedNorm}, "mamba_ssm.ops.triton.layer_norm": {"RMSNorm": GatedNorm},
}  # fmt: skip
