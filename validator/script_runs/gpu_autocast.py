"""Autocast on the processor with the rules that GPUs have: which operators compute in the lower precision and which in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

# Operators that autocast runs in fp32 on GPUs, and not on processors: losses, norms and functions with a wide range
# (https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32"), by overload.
_IN_FP32: Final = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "softmax.int",
    "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
_KEY: Final = "AutocastCPU"
_LOWER: Final = (torch.float16, torch.bfloat16)
_library: list[Any] = []


def install_autocast() -> None:
    """Makes autocast for `cuda` one for the processor, by the rules of GPUs."""
    from torch.amp.autocast_mode import autocast

    scope: Any = autocast
    init = scope.__init__

    def initialised(own: Any, device_type: str, dtype: Any = None, *arguments: Any, **keywords: Any) -> None:
        if device_type == "cuda":
            # the type that autocast has on GPUs by default
            device_type, dtype = "cpu", dtype or torch.float16
        init(own, device_type, dtype, *arguments, **keywords)

    scope.__init__ = initialised
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _library.append(library)
    for name in _IN_FP32:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY):
            library.impl(operator, _in_fp32(operator), _KEY)


def _in_fp32(operator: Any) -> Callable[..., Any]:
    """An operator whose inputs in half precision are converted to fp32."""
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOWER else value

    def computed(*arguments: Any, **keywords: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*tree_map(wide, arguments), **tree_map(wide, keywords))

    return computed
