"""Stands in for apex, its extension amp_C, and optimizers of DeepSpeed."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final

import torch

from scaleproof.validator.capture.packages.functions import (
    apply_to_tensors,
    multi_tensor_kernel,
    multi_tensor_l2norm,
    norm,
    norm_type,
    optimizer_type,
    product,
    rotated,
)
from scaleproof.validator.capture.packages.operator import update


class DeepSpeedCPUAdam(torch.optim.AdamW):
    """`deepspeed.ops.adam.DeepSpeedCPUAdam`, which updates parameters on the host."""

    def __init__(self, model_params: Any, lr: Any = 1e-3, *_: Any, betas: Any = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, **__: Any) -> None:  # fmt: skip
        super().__init__(model_params, lr, betas, eps, weight_decay)


def _accumulate(values: Any, gradient: Any, into: Any) -> None:
    """`fused_weight_gradient_mlp_cuda`: adds the gradient of weights to a sum of them."""
    rows = values.numel() // values.shape[-1]
    work = product(into.shape[0], into.shape[1], rows)
    update("fused_weight_gradient_mlp_cuda::wgrad_gemm_accum", [values, gradient, into], [into], work)


def patch_deepspeed(module: types.ModuleType) -> None:
    """Makes DeepSpeed, where it is installed, take recorded kernels in place of extensions that it would compile."""
    builders: Any = getattr(getattr(module, "ops", None), "op_builder", None)
    loaded = {
        f"Fused{name.title()}Builder": {f"multi_tensor_{name}": multi_tensor_kernel("deepspeed", name)} for name in _DEEPSPEED
    }
    loaded["CPUAdamBuilder"] = dict.fromkeys(("create_adam", "adam_update", "destroy_adam"), lambda *_: None)
    for builder, functions in loaded.items():
        if (found := getattr(builders, builder, None)) is not None:
            found.load = lambda *_, functions=functions, **__: types.SimpleNamespace(**functions)


_DEEPSPEED: Final = ("adam", "lamb", "lion")
_LAYER, _RMS = "apex::layer_norm_affine", "apex::rms_norm_affine"
_NORMS: Final = {
    **{name: norm_type(name, _LAYER, has_bias=True) for name in ("FusedLayerNorm", "MixedFusedLayerNorm")},
    **{name: norm_type(name, _RMS) for name in ("FusedRMSNorm", "MixedFusedRMSNorm")},
    "fused_layer_norm_affine": lambda x, weight, bias, *_, **__: norm(_LAYER, x, weight, bias),
    "fused_rms_norm_affine": lambda x, weight, *_, **__: norm(_RMS, x, weight),
}  # fmt: skip
_UPDATES: Final = ("scale", "axpby", "adam", "adam_capturable", "sgd", "lamb", "novograd")
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "apex": {}, "apex.normalization": _NORMS, "apex.normalization.fused_layer_norm": _NORMS,
    "apex.optimizers": {
        "FusedAdam": optimizer_type("FusedAdam", "apex::multi_tensor_adam"),
        "FusedLAMB": optimizer_type("FusedLAMB", "apex::multi_tensor_lamb"),
        "FusedSGD": optimizer_type("FusedSGD", "apex::multi_tensor_sgd", "momentum_buffer"),
    },
    "apex.multi_tensor_apply": {"multi_tensor_applier": apply_to_tensors},
    "apex.transformer.functional": {
        "fused_apply_rotary_pos_emb": lambda t, freqs, *_: rotated("apex::fused_rope", t, freqs)
    },
    "amp_C": {
        **{f"multi_tensor_{name}": multi_tensor_kernel("amp_C", name) for name in _UPDATES},
        "multi_tensor_l2norm": multi_tensor_l2norm,
    },
    "fused_weight_gradient_mlp_cuda": {"wgrad_gemm_accum_fp32": _accumulate, "wgrad_gemm_accum_fp16": _accumulate},
    "deepspeed": {}, "deepspeed.ops.adam": {
        "FusedAdam": optimizer_type("FusedAdam", "deepspeed::multi_tensor_adam"), "DeepSpeedCPUAdam": DeepSpeedCPUAdam,
    },
    "deepspeed.ops.lamb": {"FusedLamb": optimizer_type("FusedLamb", "deepspeed::multi_tensor_lamb")},
}  # fmt: skip
