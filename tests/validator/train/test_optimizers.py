"""Optimizers update as the papers that define them say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scaleproof.validator.train.optimizers import build_optimizer


def test_lamb_moves_each_tensor_by_the_learning_rate_times_its_norm() -> None:
    """Theory: the update is divided by its norm and multiplied by the tensor's (arXiv 1904.00962)."""
    tensors = [nn.Parameter(torch.randn(4, 3, dtype=torch.float64)), nn.Parameter(torch.randn(5, dtype=torch.float64))]
    optimizer = build_optimizer("lamb", tensors, 0.1)

    for _ in range(3):
        before = [tensor.detach().clone() for tensor in tensors]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        optimizer.step()
        for tensor, was in zip(tensors, before, strict=True):
            assert (tensor - was).norm().item() == pytest.approx(0.1 * was.norm().item())


def test_lamb_moves_against_the_gradient_in_adams_direction() -> None:
    weights = torch.full((6,), 2.0, dtype=torch.float64)
    lamb, adam = nn.Parameter(weights.clone()), nn.Parameter(weights.clone())
    optimizers = build_optimizer("lamb", [lamb], 0.1), torch.optim.Adam([adam], 0.1, eps=1e-6)

    for step in range(4):
        gradient = torch.linspace(-1, 2, 6, dtype=torch.float64) * (step + 1)
        adams_move, lambs_move = -adam.detach().clone(), -lamb.detach().clone()
        lamb.grad, adam.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
        adams_move += adam.detach()
        lambs_move += lamb.detach()
        assert torch.nn.functional.cosine_similarity(adams_move, lambs_move, dim=0).item() == pytest.approx(1.0)


def test_a_tensor_of_zeros_moves_by_adams_update() -> None:
    tensor = nn.Parameter(torch.zeros(3))
    optimizer = build_optimizer("lamb", [tensor], 0.1)
    tensor.grad = torch.ones(3)

    optimizer.step()

    assert tensor.tolist() == pytest.approx([-0.1] * 3, rel=1e-4)
