"""Stands in for apex, its extension amp_C, and optimizers of DeepSpeed."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from scaleproof.validator.capture.packages.functions import FusedOptimizer, Norm, norm, product, rotated, update_tensors
from scaleproof.validator.capture.packages.operator import launch, update


def _optimizer(package: str, name: str, **states: torch.dtype) -> type[FusedOptimizer]:
    """An optimizer with states of given types, by names."""
    return type(
        name, (FusedOptimizer,), {"kernel": f"{package}::multi_tensor_{name.removeprefix('Fused').lower()}", "states": states}
    )


class FusedLayerNorm(Norm):
    """`apex.normalization.FusedLayerNorm`."""

    kernel, has_bias = "apex::layer_norm_affine", True


class FusedRMSNorm(Norm):
    """`apex.normalization.FusedRMSNorm`."""

    kernel = "apex::rms_norm_affine"


class DeepSpeedCPUAdam(torch.optim.AdamW):
    """`deepspeed.ops.adam.DeepSpeedCPUAdam`, which updates parameters on the host."""

    def __init__(self, model_params: Any, lr: Any = 1e-3, *_: Any, betas: Any = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, **__: Any) -> None:  # fmt: skip
        super().__init__(model_params, lr, betas, eps, weight_decay)


def _l2_norm(_: int, flag: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], per_tensor: bool = False, *__: Any) -> Any:
    """`amp_C.multi_tensor_l2norm`: the norm of all tensors, and those of each."""
    sizes = [((1,), torch.float32), ((len(lists[0]) if per_tensor else 1,), torch.float32)]
    return tuple(launch("amp_C::multi_tensor_l2norm", lists[0], sizes))


def _accumulate(values: Any, gradient: Any, into: Any) -> None:
    """`fused_weight_gradient_mlp_cuda`: adds the gradient of weights to a sum of them."""
    rows = values.numel() // values.shape[-1]
    work = product(into.shape[0], into.shape[1], rows)
    update("fused_weight_gradient_mlp_cuda::wgrad_gemm_accum", [values, gradient], [into], work)


def patch_deepspeed(module: types.ModuleType) -> None:
    """Makes DeepSpeed, where it is installed, take recorded kernels in place of extensions that it would compile."""
    builders = getattr(getattr(module, "ops", None), "op_builder", None)
    for name, kernel in (("FusedAdamBuilder", "adam"), ("FusedLambBuilder", "lamb"), ("FusedLionBuilder", "lion")):
        apply = {f"multi_tensor_{kernel}": update_tensors(f"deepspeed::multi_tensor_{kernel}")}
        getattr(builders, name, types.SimpleNamespace()).load = lambda *_, apply=apply, **__: types.SimpleNamespace(**apply)
    on_host = types.SimpleNamespace(create_adam=lambda *_: None, adam_update=lambda *_: None, destroy_adam=lambda *_: None)
    getattr(builders, "CPUAdamBuilder", types.SimpleNamespace()).load = lambda *_, **__: on_host


_TWO: Final = {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}
_NORMS: Final = {
    "FusedLayerNorm": FusedLayerNorm, "FusedRMSNorm": FusedRMSNorm, "MixedFusedLayerNorm": FusedLayerNorm,
    "MixedFusedRMSNorm": FusedRMSNorm,
    "fused_layer_norm_affine": lambda x, weight, bias, *_, **__: norm(FusedLayerNorm.kernel, x, weight, bias),
    "fused_rms_norm_affine": lambda x, weight, *_, **__: norm(FusedRMSNorm.kernel, x, weight),
}  # fmt: skip
_UPDATES: Final = (
    "scale",
    "axpby",
    "adam",
    "adam_capturable",
    "sgd",
    "lamb",
    "novograd",
    "lamb_stage1_cuda",
    "lamb_stage2_cuda",
)
_ADAM: Final = {"FusedAdam": _optimizer("deepspeed", "FusedAdam", **_TWO), "DeepSpeedCPUAdam": DeepSpeedCPUAdam}
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "apex": {}, "apex.normalization": _NORMS, "apex.normalization.fused_layer_norm": _NORMS,
    "apex.optimizers": {
        "FusedAdam": _optimizer("apex", "FusedAdam", **_TWO), "FusedLAMB": _optimizer("apex", "FusedLAMB", **_TWO),
        "FusedSGD": _optimizer("apex", "FusedSGD", momentum_buffer=torch.float32),
    },
    "apex.multi_tensor_apply": {
        "multi_tensor_applier": lambda kernel, flag, lists, *given: kernel(1 << 16, flag, lists, *given)
    },
    "apex.transformer.functional": {
        "fused_apply_rotary_pos_emb": lambda t, freqs, *_: rotated("apex::fused_rope", t, freqs)
    },
    "amp_C": {f"multi_tensor_{name}": update_tensors(f"amp_C::multi_tensor_{name}") for name in _UPDATES}
    | {"multi_tensor_l2norm": _l2_norm},
    "fused_weight_gradient_mlp_cuda": {"wgrad_gemm_accum_fp32": _accumulate, "wgrad_gemm_accum_fp16": _accumulate},
    "deepspeed": {}, "deepspeed.ops.adam": _ADAM,
    "deepspeed.ops.lamb": {"FusedLamb": _optimizer("deepspeed", "FusedLamb", **_TWO)},
}  # fmt: skip
