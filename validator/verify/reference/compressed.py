"""Compressed averages: every step applies what workers' gradients come to once each has sent less than all of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import DataParallel
from scaleproof.simulator.strategy.data_parallel.compression import Bf16, Fp16, PowerSgd, TopK
from scaleproof.validator.train.data import Batch, share_of, whole_batches
from scaleproof.validator.train.models import models
from scaleproof.validator.verify.reference.single_process import SingleProcess

# Where rounding depends on the order of sums, Adam makes much of it in parameters whose gradients are small: up to 0.012 seen.
_ROUNDING: Final = 0.05


class Combine(Protocol):
    """Of one tensor: from each worker's gradient, weighted, what all workers apply. It remembers what they left unsent."""

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor: ...


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The parameters after all steps. Takes memory for the gradients of all workers."""
    process = SingleProcess.of(scenario)
    held = list(process.module.parameters())
    combines = [combine_of(scenario, parameter, number) for number, parameter in enumerate(held)]
    for batch in whole_batches(scenario, process.steps, torch.device("cpu"), process.dtype):
        everyones = [weighted_gradients(process, batch, worker) for worker in range(scenario.strategy.workers)]
        for parameter, combine, own in zip(held, combines, zip(*everyones, strict=True), strict=True):
            parameter.grad = combine(own)
        process.update()
    return process.parameters()


def weighted_gradients(process: SingleProcess, batch: Batch, worker: int) -> list[Tensor]:
    """What the worker's samples add to the gradient of the mean loss over all."""
    scenario, held = process.scenario, list(process.module.parameters())
    share = share_of(scenario, worker)
    for part in process.microbatches(batch, worker):
        loss = models.loss(process.module(part.inputs), part.targets)
        (loss / scenario.strategy.microbatches).backward()  # type: ignore[no-untyped-call]
    weight = (share.stop - share.start) / scenario.total_samples
    gradients = [cast(Tensor, parameter.grad) * weight for parameter in held]
    process.optimizer.zero_grad()
    return gradients


def combine_of(scenario: Scenario, parameter: Tensor, number: int) -> Combine:
    """Of the parameter with that number."""
    match cast(DataParallel, scenario.strategy).compression:
        case Fp16():
            return Rounded(torch.float16)
        case Bf16():
            return Rounded(torch.bfloat16)
        case TopK(share=share):
            return Picked(math.ceil(share * parameter.numel()))
        case PowerSgd(rank=rank):
            rows = _rows(parameter, scenario.compute == "paced")
            columns = parameter.numel() // rows
            rank = min(rank, rows, columns)
            # PyTorch's hook: factors are sent if they have less than half of what the tensor has
            if 2 * rank * (rows + columns) < rows * columns:
                return Iterated(rows, columns, rank, number)
    return sum_of


def tolerance_of(scenario: Scenario) -> float:
    """For sums in 16 bits, which depend on the order that the library chooses (of two workers they do not), and for factors,
    which depend on every rounding."""
    compression = scenario.strategy.plan.compression
    if isinstance(compression, PowerSgd):
        return 0.0 if scenario.training.precision == "fp64" else _ROUNDING
    return _ROUNDING if isinstance(compression, Fp16 | Bf16) and scenario.strategy.workers > 2 else 0.0


def sum_of(weighted: Sequence[Tensor]) -> Tensor:
    """Nothing is left out."""
    return torch.stack(tuple(weighted)).sum(0)


def _rows(parameter: Tensor, paced: bool) -> int:
    """The first axis; a paced tensor has but one, and is cut into as many rows as make it most square."""
    if not paced:
        return len(parameter)
    elements = parameter.numel()
    return max(rows for rows in range(1, math.isqrt(elements) + 1) if elements % rows == 0)


class Rounded:
    """Rounded to 16 bits by each worker, and summed in these."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        dtype = weighted[0].dtype
        if torch.finfo(dtype).bits <= 16:
            return sum_of(weighted)
        total = weighted[0].to(self.dtype)
        for gradient in weighted[1:]:
            total = total + gradient.to(self.dtype)
        return total.to(dtype)


class Picked:
    """Each worker sends the `count` values that are largest, and keeps the others for later."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[Tensor] = []

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        kept = self.kept or [torch.zeros_like(gradient) for gradient in weighted]
        owed = [gradient + rest for gradient, rest in zip(weighted, kept, strict=True)]
        sent = [torch.where(self._is_large(one), one, torch.zeros_like(one)) for one in owed]
        self.kept = [one - gone for one, gone in zip(owed, sent, strict=True)]
        return sum_of(sent)

    def _is_large(self, owed: Tensor) -> Tensor:
        sizes = owed.abs()
        return sizes >= sizes.flatten().sort(descending=True).values[self.count - 1]


class Iterated:
    """One power iteration a step on the sum of the workers' matrices, each with what it has left out so far."""

    def __init__(self, rows: int, columns: int, rank: int, number: int) -> None:
        self.shape = rows, columns
        generator = torch.Generator().manual_seed(number)
        self.right = torch.randn(columns, rank, generator=generator, dtype=torch.float64)
        self.left_out: list[Tensor] = []

    def __call__(self, weighted: Sequence[Tensor]) -> Tensor:
        matrices = [gradient.reshape(self.shape) for gradient in weighted]
        if self.left_out:
            matrices = [matrix + rest for matrix, rest in zip(matrices, self.left_out, strict=True)]
        whole = sum_of(matrices)
        begin, _ = torch.linalg.qr(_wide(self.right.to(whole)))
        left, _ = torch.linalg.qr(_wide(whole @ begin.to(whole)))
        left = left.to(whole)
        self.right = whole.T @ left
        found: Tensor = left @ self.right.T
        self.left_out = [matrix - found / len(matrices) for matrix in matrices]
        return found.reshape(weighted[0].shape)


def _wide(matrix: Tensor) -> Tensor:
    """In no less than 32 bits, which factorisations need."""
    return matrix.float() if torch.finfo(matrix.dtype).bits < 32 else matrix
