"""Functions that several packages have: attention, norms, activations, rotary embeddings, losses and steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn

from scaleproof.simulator.captured.known_kernels import attention_work
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.model.operators import Product
from scaleproof.simulator.model.torch_operators import Work
from scaleproof.validator.capture.packages.operator import (
    Call,
    Result,
    integers,
    launch,
    launch_with_gradients,
    like,
    update,
)
from scaleproof.validator.capture.steps import local_part

# Bytes of the state of the random numbers of attention's dropout, as PyTorch's kernel has them.
_STATE: Final[Result] = ((2,), torch.int64)


class Sizes(NamedTuple):
    """Sizes of attention: `samples` times `queries` × `keys` scores. Of sequences of several lengths, those that have the same
    number of tokens and of scores."""

    samples: float
    queries: float
    keys: float


def sizes_of_lengths(query_ends: torch.Tensor, key_ends: torch.Tensor, queries: int, keys: int) -> Sizes:
    """Sizes of packed sequences by the places where they end; equally long ones where those are not known. queries, keys:
    tokens of all of them."""
    ends = integers(query_ends), integers(key_ends)
    count = max(1, query_ends.numel() - 1)
    lengths = [np.diff(one).astype(float) if one is not None else np.full(count, 0.0) for one in ends]
    scores = float(lengths[0] @ lengths[1])
    if not scores:
        return Sizes(count, queries / count, keys / count)
    return Sizes(queries * keys / scores, scores / keys, scores / queries)


def seen(sizes: Sizes, causal: bool, window: Sequence[int] = (-1, -1)) -> float:
    """Share of the scores that a mask leaves. window: keys before and after each query; −1 for all."""
    left, right = window
    if left < 0 and right < 0:
        return 0.5 if causal else 1.0
    last = np.arange(round(sizes.queries)) + round(sizes.keys) - round(sizes.queries)
    high = np.minimum(last + (0 if causal else right) if causal or right >= 0 else sizes.keys, sizes.keys - 1)
    low = np.maximum(last - left if left >= 0 else 0, 0)
    return float(np.maximum(high - low + 1, 0).sum() / (len(last) * sizes.keys))


def attention(
    name: str, tensors: Sequence[torch.Tensor], heads: tuple[int, int], widths: tuple[int, int], sizes: Sizes, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in one kernel, and the logarithms of its sums. tensors: queries, keys and values, then biases; widths of the
    first and the last of these in a head. share: of the scores, that a mask leaves."""
    query, (width, value_width) = tensors[0], widths
    result = (*query.shape[:-1], query.shape[-1] // width * value_width), query.dtype
    sums = (round(sizes.samples) or 1, heads[0], round(sizes.queries)), torch.float32

    def work(backward: bool) -> Work:
        lengths = round(sizes.queries), round(sizes.keys)
        return attention_work(sizes.samples, heads[0], *lengths, width, key_heads=heads[1], value_width=value_width,
                              seen=share, backward=backward)  # fmt: skip

    call = Call(name, (result,), work(False), work(True), (sums, _STATE), keeps_results=True)
    made, logarithms, _ = launch_with_gradients(call, *tensors)
    return made, logarithms


def norm(name: str, values: torch.Tensor, weight: Any, bias: Any = None, residual: Any = None) -> Any:
    """A norm of the last dimension; with what was added before, if a residual is given."""
    rows = values.numel() // values.shape[-1]
    tensors = [one for one in (values, weight, bias, residual) if one is not None]
    results = [like(values)] * (1 if residual is None else 2)
    # statistics of each row: its scale, and its mean where it is subtracted
    kept = [((rows, 1 if bias is None else 2), torch.float32)]
    places = [place for place, one in enumerate(tensors) if one is not residual]
    made = launch_with_gradients(Call(name, results, kept=kept, keeps=places), *tensors)
    return made[0] if residual is None else made[:2]


def elementwise(name: str, *tensors: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """A kernel that is bound by bytes, with one result like the first tensor. last: its last dimension, if another one."""
    sizes = tensors[0].shape if last is None else (*tensors[0].shape[:-1], last)
    return launch_with_gradients(Call(name, ((sizes, tensors[0].dtype),)), *tensors)[0]


def rotated(name: str, values: torch.Tensor, *angles: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings, whose gradients need the angles alone."""
    places = range(1, 1 + len(angles))
    return launch_with_gradients(Call(name, (like(values),), keeps=places), values, *(one.detach() for one in angles))[0]


def cross_entropy(name: str, logits: torch.Tensor, labels: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross entropy of rows of logits in one kernel."""
    rows = labels.numel()
    call = Call(name, (((rows,), torch.float32),), kept=[((rows,), torch.float32)])
    losses = launch_with_gradients(call, logits, labels)[0]
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def product(rows: int, columns: int, inner: int, batch: int = 1, narrow: bool = False) -> Work:
    """The work of matrix products. narrow: in 8 bits."""
    return Work(products=(Product(rows, columns, inner, batch),), narrow=narrow)


class FusedOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is one kernel for each group of parameters.

    kernel: its name. states: names of the states of a parameter. block: 32-bit states if 0, otherwise states of 8 bits with a
    scale for as many elements; parameters with fewer than `least` elements have states of 32 bits.
    """

    kernel, block, least = "", 0, 4096
    states: Sequence[str] = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Any, lr: Any = 1e-3, *_: Any, **settings: Any) -> None:
        settings = {name: value for name, value in settings.items() if isinstance(value, (int, float, bool, str, tuple))}
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0} | settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **_: Any) -> Any:
        """See torch.optim."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            for one in parameters:
                self.state[one].update({} if self.state[one] else self._states(one))
            written = [local_part(value) for one in parameters for value in (one, *self.state[one].values())]
            if parameters:
                update(self.kernel, [*(local_part(one.grad) for one in parameters), *written], written)
        return loss

    def _states(self, parameter: torch.Tensor) -> dict[str, Any]:
        if not self.block or parameter.numel() < self.least:
            return {name: torch.zeros_like(parameter, dtype=torch.float32) for name in self.states}
        states: dict[str, Any] = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in self.states}
        blocks = -(-parameter.numel() // self.block)
        return states | {f"{name}_scales": parameter.new_zeros(blocks, dtype=torch.float32) for name in self.states}


def optimizer_type(name: str, kernel: str, *states: str, block: int = 0) -> type[FusedOptimizer]:
    """The type of an optimizer, see `FusedOptimizer`."""
    return type(name, (FusedOptimizer,), {"kernel": kernel, "block": block, "states": states or FusedOptimizer.states})


class Norm(nn.Module):
    """A norm with weights. kernel: its name; has_bias: whether it subtracts the mean, and adds a bias."""

    kernel, has_bias = "", False

    def __init__(self, normalized_shape: Any = None, eps: float = 1e-5, **settings: Any) -> None:
        super().__init__()
        named: Any = settings.get("hidden_size", settings.get("dim"))
        shape = normalized_shape if normalized_shape is not None else named
        self.normalized_shape, self.eps = (shape,) if isinstance(shape, int) else tuple(shape), eps
        place = {"device": settings.get("device"), "dtype": settings.get("dtype", settings.get("params_dtype"))}
        self.weight = nn.Parameter(torch.ones(self.normalized_shape, **place))
        self.bias = nn.Parameter(torch.zeros(self.normalized_shape, **place)) if self.has_bias else None
        for one in self.parameters():
            # by which frameworks find gradients that tensor-parallel ranks sum
            one.sequence_parallel = settings.get("sequence_parallel", False)  # type: ignore[attr-defined]

    def forward(self, values: torch.Tensor, *_: Any, **__: Any) -> Any:
        """The norm."""
        return norm(self.kernel, values, self.weight, self.bias)


def norm_type(name: str, kernel: str, has_bias: bool = False) -> type[Norm]:
    """The type of a norm, see `Norm`."""
    return type(name, (Norm,), {"kernel": kernel, "has_bias": has_bias})


def apply_to_tensors(kernel: Callable[..., Any], flag: Any, lists: Any, *given: Any) -> Any:
    """`multi_tensor_applier` of apex and Transformer Engine."""
    return kernel(1 << 16, flag, lists, *given)


def multi_tensor_kernel(package: str, name: str) -> Callable[..., None]:
    """A function for `multi_tensor_applier`: it writes its last list of tensors, or all but gradients, the first list."""
    reads_first = name in ("scale", "axpby")

    def apply(_: int, flag: Any, lists: Sequence[Sequence[torch.Tensor]], *__: Any, **___: Any) -> None:
        read = [tensor for one in (lists[:-1] if reads_first else lists) for tensor in one]
        written = [tensor for one in (lists[-1:] if reads_first else lists[1:]) for tensor in one]
        update(f"{package}::multi_tensor_{name}", read, written)

    return apply


def multi_tensor_l2norm(
    _: int, flag: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], per_tensor: bool = False, *__: Any
) -> tuple[torch.Tensor, ...]:
    """A function for `multi_tensor_applier`: the norm of all tensors, and those of each."""
    sizes = [((1,), torch.float32), ((len(lists[0]) if per_tensor else 1,), torch.float32)]
    return tuple(launch("amp_C::multi_tensor_l2norm", lists[0], sizes))


class LossModule(nn.Module):
    """Cross entropy as a module. kernel: its name."""

    kernel = ""

    def __init__(self, *_: Any, reduction: str = "mean", **__: Any) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Any, labels: Any, *_: Any) -> Any:
        """The loss."""
        return cross_entropy(self.kernel, logits, labels, self.reduction)


def not_captured(name: str) -> Callable[..., Any]:
    """A function that scripts import, and that is refused where it is called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RunError(f"{name} is not captured, as for inference; use the package's function for training")

    return refuse
