"""Shapes of the results of operators that PyTorch computes on GPUs, but for which it has no function of shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _per_channel(count: int, of: int = 0) -> Callable[..., Any]:
    """`count` numbers for each channel of an argument, at least of 32 bits."""

    def shapes(*arguments: Any, **_: Any) -> Any:
        values = arguments[of]
        made = [values.new_empty(values.size(1), dtype=_WIDER.get(values.dtype, values.dtype)) for _ in range(count)]
        return tuple(made)

    return shapes


def _like(place: int) -> Callable[..., Any]:
    """The shape of an argument."""
    return lambda *arguments, **_: torch.empty_like(arguments[place])


def _ctc_loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *_: Any, **__: Any) -> Any:
    """The loss of each sample, and the logarithms of probabilities of its labels and the blanks between them at all times."""
    times, samples = log_probs.shape[:2]
    longest = targets.size(1) if targets.dim() > 1 else -(-targets.numel() // samples)
    return log_probs.new_empty(samples), log_probs.new_empty(samples, times, 2 * longest + 1)


# By names of operators: functions of the arguments.
SHAPES: Final[Mapping[str, Callable[..., Any]]] = {
    "batch_norm_stats": _per_channel(2),
    "batch_norm_gather_stats": _per_channel(2),
    "batch_norm_gather_stats_with_counts": _per_channel(2),
    "batch_norm_update_stats": _per_channel(2),
    "batch_norm_backward_reduce": _per_channel(4),
    "batch_norm_elemt": _like(0),
    "batch_norm_backward_elemt": _like(1),
    "_ctc_loss.Tensor": _ctc_loss,
    "_ctc_loss_backward": _like(1),
    "_ctc_loss_backward.Tensor": _like(1),
    "_logcumsumexp": _like(0),
    "_masked_softmax": _like(0),
    "_masked_softmax_backward": _like(0),
}
