"""Operators of compiled graphs are fused as a compiler for GPUs does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from scaleproof.validator.capture.compiled.fusion import Kernel, kernels_of


def kernels(function: Callable[..., Any], *shapes: Sequence[int]) -> list[str]:
    """Names of the kernels of a function of tensors."""
    graph = make_fx(function)(*(torch.ones(tuple(shape), device="meta") for shape in shapes)).graph
    found = kernels_of(graph)
    graph.lint()
    assert sorted(node.name for kernel in found for node in kernel.nodes) == sorted(
        node.name for node in graph.nodes if node.op not in ("placeholder", "output")
    )
    check_order(found)
    return [kernel.name if kernel.is_fused else "library" for kernel in found]


def check_order(found: Sequence[Kernel]) -> None:
    """Each kernel follows what it reads."""
    done: set[object] = set()
    for kernel in found:
        done |= set(kernel.nodes)
        assert all(read in done for node in kernel.nodes for read in node.all_input_nodes if read.op != "placeholder")


def test_what_is_between_products_is_one_kernel() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(x) * 2 @ w) + 1

    assert kernels(model, (8, 16), (16, 4)) == ["fused_relu_mul", "library", "fused_tanh_add"]


def test_reductions_of_rows_are_fused_with_what_reads_them() -> None:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)

    assert len(kernels(normalised, (8, 16))) == 1


def test_sums_over_rows_are_kernels_of_their_own_with_what_only_they_read() -> None:
    def gradients(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (grad * x).sum(0), torch.softmax(grad, -1)

    found = kernels(gradients, (8, 16), (8, 16))
    assert sorted(found) == ["fused__softmax", "fused_mul_sum"]


def test_what_only_one_later_kernel_reads_is_computed_there() -> None:
    def model(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scaled = torch.exp(y)
        return x @ w + scaled

    assert kernels(model, (8, 16), (8, 4), (16, 4)) == ["library", "fused_exp_add"]


def test_views_of_results_of_libraries_need_no_kernel() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).view(2, 4, 4).transpose(0, 1)

    assert kernels(model, (8, 16), (16, 4)) == ["library"]


def test_the_gradient_of_a_loss_by_classes_is_one_kernel() -> None:
    def gradient(scores: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros_like(scores).scatter(1, places.long(), -1.0)
        return chosen - torch.softmax(scores, -1)

    assert len(kernels(gradient, (8, 16), (8, 1))) == 1


def test_what_is_cheaper_to_compute_again_is_not_written() -> None:
    def gradients(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = grad.to(torch.float64)
        return wide.sum(0), torch.softmax(wide * x, -1)

    graph = make_fx(gradients)(torch.ones(8, 16), torch.ones(8, 16)).graph
    found = kernels_of(graph)
    assert len(found) == 2
    # both read the gradient itself, and neither what the other one computes
    assert all(read.op == "placeholder" or read in kernel.nodes
               for kernel in found for node in kernel.nodes for read in node.all_input_nodes)  # fmt: skip


def fused_bytes(function: Callable[..., Any], *shapes: Sequence[int]) -> list[tuple[int, int]]:
    """Elements that each kernel of a compiler reads from outside, and those that it writes."""
    found = kernels_of(make_fx(function)(*(torch.ones(tuple(shape), device="meta") for shape in shapes)).graph)
    moved = []
    for kernel in found:
        inside = set(kernel.nodes)
        reads = {read for node in kernel.nodes for read in node.all_input_nodes if read not in inside}
        written = [node for node in kernel.nodes if any(user not in inside for user in node.users)]
        if kernel.is_fused:
            moved.append((sum(read.meta["val"].numel() for read in reads), sum(node.meta["val"].numel() for node in written)))
    return moved


def test_kernels_with_the_same_loops_that_read_the_same_are_one() -> None:
    def gating(grad: torch.Tensor, other: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.sigmoid(other)
        return grad * other * chosen, grad * up * chosen * (1 + other * (1 - chosen))

    # each tensor is read once, and both gradients are written
    assert fused_bytes(gating, *[(8, 16)] * 3) == [(3 * 128, 2 * 128)]


def test_what_a_later_kernel_needs_is_computed_again_there() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.exp(x) * 2
        return torch.tanh(wide) @ w, wide + 1

    def gradient(x: torch.Tensor, grad: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        chosen = torch.sigmoid(x)
        first = chosen * grad
        return (first @ w) * chosen

    assert fused_bytes(model, (8, 16), (16, 16)) == [(128, 2 * 128)]
    # the sigmoid is not written for the kernel behind the product
    assert fused_bytes(gradient, (8, 16), (8, 16), (16, 16)) == [(2 * 128, 128), (2 * 128, 128)]


@pytest.mark.parametrize(("rows", "kernels"), [(2048, 2), (8192, 1)])
def test_large_sums_over_rows_share_a_kernel_with_sums_of_rows(rows: int, kernels: int) -> None:
    def norm(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (grad * x).sum(0), grad - x * (grad * x).mean(-1, keepdim=True)

    assert len(fused_bytes(norm, (rows, 1024), (rows, 1024))) == kernels
