"""Compression of gradients: what workers send in place of a bucket's gradients, and the device time of compressing.

Layers have the number of elements of a parameter tensor, not its shape. Methods that need matrices treat a tensor as square,
which has the smallest factors (PyTorch's batched PowerSGD hook makes a square of a whole bucket in the same way).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Device, Precision
from scaleproof.simulator.common.spec import Spec

# Factors are sent if they have less than this share of the tensor's elements (PyTorch's hook: min_compression_rate of 2).
WORTHWHILE: Final = 0.5
# Kernels that orthogonalise a column of a factor: its norm, its projections, and their subtraction from later columns.
_ORTHOGONAL_KERNELS: Final = 3
# Bytes of a position within a bucket.
_INDEX_BYTES: Final = 4


class CompressedCollective(NamedTuple):
    """A collective that replaces a bucket's all-reduce. size_bytes: input of each worker."""

    op: Literal["all_reduce", "all_gather"]
    size_bytes: float

    def collective_bytes(self, workers: int) -> float:
        """Size of the collective in bytes; for an all-gather, the output of each worker."""
        return self.size_bytes * (workers if self.op == "all_gather" else 1)


class Compression(Spec, ABC):
    """A method that makes a bucket of gradients smaller. tensors: elements of each parameter tensor in the bucket."""

    @abstractmethod
    def wire(self, tensors: Sequence[int], element_bytes: int) -> list[CompressedCollective]:
        """Collectives that replace a bucket's all-reduce, in order."""

    @abstractmethod
    def work_s(self, tensors: Sequence[int], workers: int, device: Device, precision: Precision) -> float:
        """Seconds in which a worker's device compresses its gradients and decompresses what it receives.

        The compression error stays with the worker and is added to its next gradients (error feedback), for methods that have
        one.
        """


class Cast(Compression):
    """Gradients are rounded to 16 bits; narrower ones are sent unchanged."""

    def wire(self, tensors: Sequence[int], element_bytes: int) -> list[CompressedCollective]:
        """One all-reduce of at most 2 bytes per element."""
        return [CompressedCollective("all_reduce", float(sum(tensors) * min(2, element_bytes)))]

    def work_s(self, tensors: Sequence[int], workers: int, device: Device, precision: Precision) -> float:
        """Seconds of rounding gradients to 16 bits and of widening their sum; zero for gradients of 16 bits."""
        wide_bytes = ELEMENT_BYTES[precision]
        return 2 * _kernel_s(device, precision, sum(tensors) * (wide_bytes + 2)) if wide_bytes > 2 else 0.0


class Fp16(Cast):
    """Half precision."""

    kind: Literal["fp16"] = "fp16"


class Bf16(Cast):
    """Half of fp32's bits, with its range."""

    kind: Literal["bf16"] = "bf16"


class PowerSgd(Compression):
    """Two factors of `rank` columns for each matrix, by one power iteration from the previous factor (arXiv 1905.13727).

    Tensors for which this saves too little are sent unchanged.
    """

    kind: Literal["power_sgd"] = "power_sgd"
    rank: int = Field(4, ge=1, le=1024)

    def wire(self, tensors: Sequence[int], element_bytes: int) -> list[CompressedCollective]:
        """All-reduces of the uncompressed tensors, of the left factors, and of the right factors, which depend on the sum of
        the left ones."""
        factor_bytes = sum(self._factor(tensor) for tensor in tensors if self._is_worthwhile(tensor)) * element_bytes
        whole_bytes = float(sum(tensor for tensor in tensors if not self._is_worthwhile(tensor)) * element_bytes)
        result = [CompressedCollective("all_reduce", size_bytes) for size_bytes in (whole_bytes, factor_bytes, factor_bytes)]
        return [one for one in result if one.size_bytes]

    def work_s(self, tensors: Sequence[int], workers: int, device: Device, precision: Precision) -> float:
        """Algorithms 1 and 2 of the paper: P = MQ, orthogonalised P, Q = MᵀP, the gradient PQᵀ, and the error.

        Matrices of the same shape share one kernel.
        """
        matrices = [tensor for tensor in tensors if self._is_worthwhile(tensor)]
        return sum(self._matrices_s(size, matrices.count(size), device, precision) for size in set(matrices))

    def _matrices_s(self, size: int, count: int, device: Device, precision: Precision) -> float:
        """Seconds for `count` matrices of `size` elements each."""
        matrix_bytes = float(count * size * ELEMENT_BYTES[precision])
        column_bytes = matrix_bytes / math.sqrt(size)
        # the error is added to the gradient, and later the sent part is subtracted from it: two reads and one write each
        feedback_s = 2 * _kernel_s(device, precision, 3 * matrix_bytes)
        products_s = 3 * _kernel_s(device, precision, matrix_bytes, 2.0 * count * size * self.rank)
        # for each column, each later column is read for the projection, then read and written for the subtraction
        following = self.rank * (self.rank - 1) / 2
        kernels, moved_bytes = _ORTHOGONAL_KERNELS * self.rank, 3 * column_bytes * (following + self.rank)
        return feedback_s + products_s + kernels * _kernel_s(device, precision, moved_bytes / kernels)

    def _factor(self, tensor: int) -> float:
        """Elements of one of the two factors of a square matrix."""
        return self.rank * math.sqrt(tensor)

    def _is_worthwhile(self, tensor: int) -> bool:
        return 2 * self._factor(tensor) < WORTHWHILE * tensor


class TopK(Compression):
    """The `share` of largest values, each with its position (arXiv 1712.01887); every worker receives those of all workers."""

    kind: Literal["top_k"] = "top_k"
    share: float = Field(0.001, gt=0, le=1, description="share of a tensor's values that a worker sends")

    def wire(self, tensors: Sequence[int], element_bytes: int) -> list[CompressedCollective]:
        """One all-gather of the selected values and their positions."""
        return [CompressedCollective("all_gather", float(self._sent(tensors) * (element_bytes + _INDEX_BYTES)))]

    def work_s(self, tensors: Sequence[int], workers: int, device: Device, precision: Precision) -> float:
        """Seconds for adding the error, selecting values above a threshold (found on a sample), and adding the values of all
        workers."""
        value_bytes, sent = ELEMENT_BYTES[precision], self._sent(tensors)
        whole_bytes, pair_bytes = sum(tensors) * value_bytes, value_bytes + _INDEX_BYTES
        added_s = _kernel_s(device, precision, 3 * whole_bytes)
        picked_s = _kernel_s(device, precision, whole_bytes + sent * (pair_bytes + value_bytes))
        summed_s = _kernel_s(device, precision, whole_bytes + workers * sent * (pair_bytes + 2 * value_bytes))
        return added_s + picked_s + summed_s

    def _sent(self, tensors: Sequence[int]) -> int:
        return sum(math.ceil(self.share * tensor) for tensor in tensors)


AnyCompression = Annotated[Fp16 | Bf16 | PowerSgd | TopK, Field(discriminator="kind")]


def _kernel_s(device: Device, precision: Precision, moved_bytes: float, flops: float = 0.0) -> float:
    """Seconds of one kernel, bound by memory traffic or by compute."""
    kernels = device.kernels
    launch_s, memory_share, peak_share = (
        (kernels.launch_s, kernels.memory_share, kernels.tile_share) if kernels else (0.0, 1.0, device.efficiency or 1.0)
    )
    moving_s = moved_bytes / (device.memory_bandwidth_Bps * memory_share)
    return launch_s + max(moving_s, flops / (device.peak_flops[precision] * peak_share))
