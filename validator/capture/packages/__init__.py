"""Packages with kernels for CUDA, and what stands in for those that cannot be imported: functions that launch recorded kernels.

Each module with stand-ins has MODULES: names of modules, with the names in them.
"""

from __future__ import annotations

from typing import Final

_HERE: Final = __name__
# Packages by the module with their stand-ins.
_PACKAGES: Final = {
    "triton_language": ("triton",), "attention": ("flash_attn", "flash_attn_interface", "xformers"),
    "transformer_engine": ("transformer_engine",), "bitsandbytes": ("bitsandbytes",), "liger": ("liger_kernel",),
    "apex": ("apex", "amp_C", "fused_weight_gradient_mlp_cuda", "deepspeed"), "state_space": ("causal_conv1d", "mamba_ssm"),
    "experts": ("grouped_gemm", "deep_ep"),
}  # fmt: skip
# The module with the stand-in of each package.
STAND_INS: Final = {package: f"{_HERE}.{module}" for module, packages in _PACKAGES.items() for package in packages}
