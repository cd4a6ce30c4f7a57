"""Flat: several tensors as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


def pack(tensors: Iterable[Tensor]) -> Tensor:
    """All of them as one vector, copied."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A vector's parts, shaped as the tensors are that it was packed of."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Those that there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def adopt(parameters: Iterable[nn.Parameter], values: Iterable[Tensor], slopes: Iterable[Tensor]) -> None:
    """Has parameters and their gradients live elsewhere, in tensors of their sizes."""
    for parameter, value, slope in zip(parameters, values, slopes, strict=True):
        parameter.data, parameter.grad = value.view_as(parameter), slope.view_as(parameter)
