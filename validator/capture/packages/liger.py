"""Stands in for Liger Kernel: norms, activations, rotary embeddings, and losses, also as models of Transformers use them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import nn

from scaleproof.simulator.model.operators import Product
from scaleproof.simulator.model.torch_operators import Work
from scaleproof.validator.capture.packages.functions import LossModule, elementwise, norm, norm_type, rotated
from scaleproof.validator.capture.packages.operator import Call, launch_with_gradients, like

_NORM: Final = "liger_kernel::rms_norm"
# Names of the parts of a model's file in Transformers, with that of the model before.
_PARTS: Final = {"rms_norm": "RMSNorm", "swiglu": "MLP", "geglu": "MLP"}


class LigerSwiGLUMLP(nn.Module):
    """`LigerSwiGLUMLP`, of a configuration."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Any) -> Any:
        """The feed-forward network."""
        return _gated(self, x)


class LigerCrossEntropyLoss(LossModule):
    """`LigerCrossEntropyLoss`."""

    kernel = "liger_kernel::cross_entropy"


class FusedLinearLoss(nn.Module):
    """`LigerFusedLinearCrossEntropyLoss`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, lin_weight: Any, _input: Any, target: Any, *_: Any) -> Any:
        """The loss of a product."""
        return fused_linear_cross_entropy(_input, lin_weight, target)


def fused_linear_cross_entropy(values: Any, weight: Any, target: Any, *_: Any, **__: Any) -> Any:
    """The loss of a product with the vocabulary, of whose logits a part exists at a time: its three products are all in the
    forward pass, and the backward pass scales gradients."""
    (rows, inner), columns = values.shape, weight.shape[0]
    # as many rows at a time as make their logits as large as the input
    part = 1 << max(0, math.ceil(rows / math.ceil(columns / inner)) - 1).bit_length()
    logits = values.new_empty(min(part, rows), columns)
    products = Product(rows, columns, inner), Product(rows, inner, columns), Product(columns, inner, rows)
    name = "liger_kernel::fused_linear_cross_entropy"
    call = Call(name, (((), torch.float32),), Work(products=products), kept=(like(values), like(weight)), keeps=())
    made = launch_with_gradients(call, values, weight, target)[0]
    del logits
    return made


def liger_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, *_: Any, **__: Any) -> Any:
    """Rotary embeddings of queries and keys."""
    return tuple(rotated("liger_kernel::rope", one, cos, sin) for one in (q, k))


def _gated(module: Any, values: Any) -> Any:
    return module.down_proj(elementwise("liger_kernel::swiglu", module.gate_proj(values), module.up_proj(values)))


def _applied(family: str) -> Callable[..., None]:
    """The function that makes models of a family use these functions, of which options choose some."""

    def apply(*_: Any, rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True,
              model: Any = None, **chosen: Any) -> None:  # fmt: skip
        of: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        classes: dict[str, Any] = {name.lower(): value for name, value in vars(of).items() if isinstance(value, type)}
        forwards = {"RMSNorm": lambda this, x: norm(_NORM, x, this.weight), "MLP": _gated}
        for option, part in _PARTS.items():
            if chosen.get(option, True) and (found := classes.get(f"{family.replace('_', '')}{part.lower()}")):
                found.forward = forwards[part]
        if rope:
            of.apply_rotary_pos_emb = liger_rotary_pos_emb
        if fused_linear_cross_entropy and (found := classes.get(f"{family.replace('_', '')}forcausallm")):
            found.forward = _with_fused_loss(found.forward)
        elif cross_entropy:
            nn.functional.cross_entropy = lambda logits, labels, *_, **__: LigerCrossEntropyLoss()(logits, labels)

    return apply


def _with_fused_loss(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a model whose loss takes the input of its last product."""

    def fused(model: Any, *arguments: Any, **keywords: Any) -> Any:
        if keywords.get("labels") is None:
            return forward(model, *arguments, **keywords)
        head = model.lm_head

        def loss(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
            shifted = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
            return fused_linear_cross_entropy(logits.flatten(0, -2), head.weight, shifted.flatten())

        with (
            patch.object(model, "lm_head", nn.Identity()),
            patch.object(type(model), "loss_function", property(lambda _: loss)),
        ):
            return forward(model, *arguments, **keywords)

    return fused


_FAMILIES: Final = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite", "olmo2")
_NAMES: Final = {
    "LigerRMSNorm": norm_type("LigerRMSNorm", _NORM), "LigerSwiGLUMLP": LigerSwiGLUMLP,
    "LigerLayerNorm": norm_type("LigerLayerNorm", "liger_kernel::layer_norm", has_bias=True),
    "LigerCrossEntropyLoss": LigerCrossEntropyLoss, "LigerFusedLinearCrossEntropyLoss": FusedLinearLoss,
    "liger_rotary_pos_emb": liger_rotary_pos_emb,
    **{f"apply_liger_kernel_to_{family}": _applied(family) for family in _FAMILIES},
    "liger_fused_linear_cross_entropy": fused_linear_cross_entropy,
}  # fmt: skip
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "liger_kernel": {}, "liger_kernel.transformers": _NAMES, "liger_kernel.transformers.functional": _NAMES,
    **{f"liger_kernel.transformers.{module}": _NAMES
       for module in ("rms_norm", "layer_norm", "swiglu", "rope", "cross_entropy", "fused_linear_cross_entropy")},
}  # fmt: skip
