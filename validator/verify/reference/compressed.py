"""Compressed averages: every step applies the average of workers' compressed gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

from scaleproof.simulator.parallelism.compression import Bf16, Fp16, PowerSgd, TopK
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.data import Batch, share_of, whole_batches
from scaleproof.validator.verify.reference.single_process import SingleProcess, is_rounded

# Where rounding depends on the order of sums, Adam amplifies it in parameters with small gradients: up to 0.012 observed.
_ROUNDING: Final = 0.05


class Combine(Protocol):
    """Maps the workers' weighted gradients of one tensor to the one that all apply. It keeps what workers left unsent."""

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        """The gradient that all workers apply."""


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The parameters after all steps. Takes memory for the gradients of all workers."""
    process = SingleProcess.of(scenario)
    parameters = list(process.module.parameters())
    combines = [combine_of(scenario, parameter, number) for number, parameter in enumerate(parameters)]
    for batch in whole_batches(scenario, process.steps, torch.device("cpu"), process.dtype):
        everyones = [weighted_gradients(process, batch, worker) for worker in range(scenario.strategy.workers)]
        for parameter, combine, own in zip(parameters, combines, zip(*everyones, strict=True), strict=True):
            parameter.grad = combine(own)
        process.update()
    process.finish()
    return process.parameters()


def weighted_gradients(process: SingleProcess, batch: Batch, worker: int) -> list[Tensor]:
    """The part of the worker's samples in the gradient of the mean loss over all samples, per parameter."""
    scenario, parameters = process.scenario, list(process.module.parameters())
    share = share_of(scenario, worker)
    for part in process.microbatches(batch, worker):
        loss = process.loss(part)
        (loss / scenario.strategy.microbatches).backward()  # type: ignore[no-untyped-call]
    weight = (share.stop - share.start) / scenario.total_samples
    gradients = [cast(Tensor, parameter.grad) * weight for parameter in parameters]
    process.optimizer.zero_grad()
    return gradients


def combine_of(scenario: Scenario, parameter: Tensor, number: int) -> Combine:
    """The way in which workers' gradients of a parameter are combined. number: that of the parameter, which seeds PowerSGD."""
    match scenario.strategy.plan.compression:
        case Fp16():
            return HalfPrecisionSum(torch.float16)
        case Bf16():
            return HalfPrecisionSum(torch.bfloat16)
        case TopK(share=share):
            return TopKSum(math.ceil(share * parameter.numel()))
        case PowerSgd(rank=rank):
            rows = _rows(parameter, scenario.compute == "paced")
            columns = parameter.numel() // rows
            rank = min(rank, rows, columns)
            # PyTorch's hook: factors are sent if they have less than half of what the tensor has
            if 2 * rank * (rows + columns) < rows * columns:
                return PowerSgdSum(rows, columns, rank, number)
    return sum_of


def tolerance_of(scenario: Scenario) -> float:
    """Tolerance of the comparison; 0 for the usual one.

    Sums in 16 bits depend on the order that the library chooses if there are more than two workers, and PowerSGD's factors on
    every rounding.
    """
    compression = scenario.strategy.plan.compression
    if isinstance(compression, PowerSgd):
        return 0.0 if scenario.training.precision == "fp64" else _ROUNDING
    return _ROUNDING if isinstance(compression, Fp16 | Bf16) and scenario.strategy.workers > 2 else 0.0


def sum_of(weighted: Sequence[Tensor]) -> Tensor:
    """The sum of the gradients without compression."""
    return torch.stack(tuple(weighted)).sum(0)


def _rows(parameter: Tensor, paced: bool) -> int:
    """Number of rows of a parameter as a matrix: its first axis; emulated tensors are flat and cut to be nearly square."""
    if not paced:
        return len(parameter)
    elements = parameter.numel()
    return max(rows for rows in range(1, math.isqrt(elements) + 1) if elements % rows == 0)


class HalfPrecisionSum:
    """Gradients are rounded to 16 bits by each worker and summed in 16 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        """The sum of the rounded gradients."""
        dtype = weighted[0].dtype
        if torch.finfo(dtype).bits <= 16:
            return sum_of(weighted)
        first, *others = reversed(weighted) if is_rounded() else weighted
        total = first.to(self.dtype)
        for gradient in others:
            total = total + gradient.to(self.dtype)
        return total.to(dtype)


class TopKSum:
    """Each worker sends the `count` values that are largest, and keeps the others for later."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[Tensor] = []

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        """The sum of the values that workers send."""
        kept = self.kept or [torch.zeros_like(gradient) for gradient in weighted]
        pending = [gradient + rest for gradient, rest in zip(weighted, kept, strict=True)]
        sent = [torch.where(self._is_large(one), one, torch.zeros_like(one)) for one in pending]
        self.kept = [one - gone for one, gone in zip(pending, sent, strict=True)]
        return sum_of(sent)

    def _is_large(self, pending: Tensor) -> Tensor:
        sizes = pending.abs()
        return sizes >= sizes.flatten().sort(descending=True).values[self.count - 1]


class PowerSgdSum:
    """PowerSGD: one power iteration per step on the sum of the workers' matrices, each with its error so far added."""

    def __init__(self, rows: int, columns: int, rank: int, number: int) -> None:
        self.shape = rows, columns
        generator = torch.Generator().manual_seed(number)
        self.right = torch.randn(columns, rank, generator=generator, dtype=torch.float64)
        self.errors: list[Tensor] = []

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        """The product of the summed factors."""
        matrices = [gradient.reshape(self.shape) for gradient in weighted]
        if self.errors:
            matrices = [matrix + rest for matrix, rest in zip(matrices, self.errors, strict=True)]
        whole = sum_of(matrices)
        begin, _ = torch.linalg.qr(_wide(self.right.to(whole)))
        left, _ = torch.linalg.qr(_wide(whole @ begin.to(whole)))
        left = left.to(whole)
        self.right = whole.T @ left
        approximation: Tensor = left @ self.right.T
        self.errors = [matrix - approximation / len(matrices) for matrix in matrices]
        return approximation.reshape(weighted[0].shape)


def _wide(matrix: Tensor) -> Tensor:
    """The matrix in at least 32 bits, which factorisations need."""
    return matrix.float() if torch.finfo(matrix.dtype).bits < 32 else matrix
