"""Several tensors as one flat vector, and views of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


def pack(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of all tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a vector's parts with the shapes of the tensors `like`, from which it was packed."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def replace_values(parameters: Iterable[nn.Parameter], values: Iterable[Tensor]) -> None:
    """Gives parameters other tensors of the same sizes as their values, with the precision that these have."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value.view_as(parameter)
