"""Compression of gradients: workers send less than a bucket's gradients, and compute an approximate mean from it.

A worker adds what a method leaves unsent to its next gradients (error feedback). All state is kept per tensor, because DDP cuts
buckets anew after the first step. Gradients are weighted before they are summed, so that the sum is their mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from scaleproof.simulator.parallelism.compression import WORTHWHILE, Bf16, Compression, Fp16, PowerSgd, TopK
from scaleproof.validator.strategy.data_parallel.buckets import Bucket
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import pack, views


class SumMethod(ABC):
    """A way to sum a bucket over the ranks of the collectives' team."""

    @abstractmethod
    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Replaces the bucket's gradients by their sum."""


class Whole(SumMethod):
    """Without compression."""

    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Sums the gradients as they are."""
        collectives.sum(bucket.flat)


class Cast(SumMethod):
    """Gradients are rounded to 16 bits and summed in 16 bits; those with 16 bits are sent unchanged."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Rounds wider gradients to 16 bits, and sums them."""
        rounded = bucket.flat.to(self._dtype) if bucket.flat.element_size() > self._dtype.itemsize else bucket.flat
        collectives.sum(rounded)
        bucket.flat.copy_(rounded)


class Factors(SumMethod):
    """PowerSGD (arXiv 1905.13727, algorithms 1 and 2): two factors of `rank` columns, from the first step on.

    Matrices are a tensor's first axis by all others, as in PyTorch's hook, which sends tensors without a second axis whole.
    Emulated tensors, which are flat, become the most nearly square matrix. The right factor of one step starts the next one's
    iteration; the first is normal random numbers from a generator seeded with the tensor's number.
    """

    def __init__(self, rank: int, paced: bool) -> None:
        self._rank, self._paced = rank, paced
        self._rest: dict[int, Tensor] = {}
        self._right: dict[int, Tensor] = {}

    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Sums factors of large matrices, and other tensors as they are."""
        matrices: dict[int, Tensor] = {}
        whole: list[Tensor] = []
        for number, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            matrix = self._matrix(gradient)
            if self._pays(matrix):
                matrices[number] = matrix
            else:
                whole.append(gradient)
        _sum_together(whole, collectives)
        self._sum_matrices(matrices, collectives)

    def _sum_matrices(self, matrices: dict[int, Tensor], collectives: Collectives) -> None:
        for number, matrix in matrices.items():
            if number in self._rest:
                matrix.add_(self._rest[number])
        lefts = [matrix @ _orthogonal(self._begin(number, matrix)) for number, matrix in matrices.items()]
        _sum_together(lefts, collectives)
        lefts = [_orthogonal(left) for left in lefts]
        # transposed, so that matrices are read in memory order
        rights = [left.T @ matrix for matrix, left in zip(matrices.values(), lefts, strict=True)]
        _sum_together(rights, collectives)
        for (number, matrix), left, right in zip(matrices.items(), lefts, rights, strict=True):
            self._rest[number] = torch.addmm(matrix, left, right, alpha=-1 / collectives.team.size)
            self._right[number] = right.T
            torch.mm(left, right, out=matrix)

    def _begin(self, number: int, matrix: Tensor) -> Tensor:
        """The right factor at the start of an iteration."""
        if number in self._right:
            return self._right[number]
        generator = torch.Generator().manual_seed(number)
        return torch.randn(matrix.shape[1], self._columns(matrix), generator=generator, dtype=torch.float64).to(matrix)

    def _matrix(self, gradient: Tensor) -> Tensor:
        if self._paced:
            return gradient.view(_nearest_to_square(gradient.numel()), -1)
        return gradient.view(len(gradient), -1)

    def _columns(self, matrix: Tensor) -> int:
        rows, columns = matrix.shape
        return min(rows, columns, self._rank)

    def _pays(self, matrix: Tensor) -> bool:
        return sum(matrix.shape) * self._columns(matrix) < WORTHWHILE * matrix.numel()


class Largest(SumMethod):
    """Top-k: the `share` of each tensor's values with the largest size, and their positions, by one all-gather.

    Deep gradient compression, arXiv 1712.01887.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rest: dict[int, Tensor] = {}

    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Adds up the largest values of all ranks; keeps the others for the next step."""
        values, positions, begin = [], [], 0
        for number, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            flat = gradient.flatten()
            if number in self._rest:
                flat = flat + self._rest[number]
            largest = flat.abs().topk(math.ceil(self._share * len(flat))).indices
            values.append(flat[largest])
            positions.append((largest + begin).to(torch.int32))
            self._rest[number] = flat.index_fill(0, largest, 0.0)
            begin += len(flat)
        sent = torch.cat(values)
        everyones = collectives.gather(torch.cat([sent.view(torch.uint8), torch.cat(positions).view(torch.uint8)]))
        bucket.flat.zero_()
        for received in everyones:
            value, position = received[: sent.nbytes].view(sent.dtype), received[sent.nbytes :].view(torch.int32)
            bucket.flat.index_add_(0, position, value)


def method_of(compression: Compression | None, paced: bool) -> SumMethod:
    """The method of a strategy's `compression`. paced: whether compute is emulated, so that tensors are flat."""
    match compression:
        case Fp16():
            return Cast(torch.float16)
        case Bf16():
            return Cast(torch.bfloat16)
        case PowerSgd(rank=rank):
            return Factors(rank, paced)
        case TopK(share=share):
            return Largest(share)
        case _:
            return Whole()


def _sum_together(tensors: Sequence[Tensor], collectives: Collectives) -> None:
    """Sums several tensors in place by one collective."""
    if not tensors:
        return
    packed = pack(tensors)
    collectives.sum(packed)
    for tensor, summed in zip(tensors, views(packed, tensors), strict=True):
        tensor.copy_(summed)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span the same space as the matrix's columns."""
    wide = matrix if matrix.element_size() > 2 else matrix.float()
    columns: Tensor = torch.linalg.qr(wide).Q
    return columns.to(matrix)


def _nearest_to_square(elements: int) -> int:
    """The largest divisor that is at most the square root."""
    return next(rows for rows in range(math.isqrt(elements), 0, -1) if elements % rows == 0)
