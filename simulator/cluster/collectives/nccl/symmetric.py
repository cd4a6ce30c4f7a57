"""Symmetric kernels: one-sided collectives of ranks on one NVLink domain, whose buffers are in windows of symmetric memory.

NCCL has them from 2.27 on. Which one runs follows from its model in src/sym_kernels.cc, 2.28; how long it takes does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.cluster.collectives.algorithms import Op
from scaleproof.simulator.cluster.collectives.nccl.facts import GroupLinks, Nccl

_OPS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter")
_US: Final = 1e-6
# sym_kernels.cc: GB/s counted in 2^30 bytes, here in bytes per microsecond.
_GBps: Final = 2**30 / 1e6
_MOST_BLOCKS: Final = 64
# Blocks of multimem kernels of all ranks together, by generation.
_MULTIMEM_BLOCKS: Final = {"hopper": 16, "blackwell": 32}
# Time by which a kernel counts as longer for each processor that it occupies.
_EACH_BLOCK: Final = 0.025
# The fewest blocks are taken that need at most this much longer than the most.
_TOLERATED: Final = 1.025
# Bytes that LL counts as, and buffers from which on its kernels cannot count.
_LL_BYTES: Final = 9
_LL_MOST_BYTES: Final = 2**31
# Rate of a block of multimem gathers and scatters over ranks times that of others, which makes NCCL prefer multimem.
_MULTIMEM_GAIN: Final = 0.55


def candidates(op: Op, links: GroupLinks, facts: Nccl) -> list[str]:
    """The symmetric kernels that NCCL has for an operation on a group; none if it has no windows on one NVLink domain."""
    is_available = facts.buffers == "symmetric" and facts.is_at_least(2, 27) and facts.generation != "cdna"
    if not is_available or op not in _OPS or links.group.nodes > 1 or facts.interconnect != "nvlink":
        return []
    return ["symmetric_ll", "symmetric_direct", *(["symmetric_multimem"] if facts.has_nvls_on(links.group) else [])]


@dataclass(frozen=True)
class SymmetricCurve:
    """Duration of a symmetric kernel as NCCL estimates it, as a function of its size; longer the more processors it occupies.

    base_us: of the smallest sizes. bus: bytes sent or received by a rank, per byte of the size. block_rate, peak: bytes per
    microsecond of a block, and at most. blocks: most blocks. most_bytes: the sizes that it can have.
    """

    base_us: float
    bus: float
    block_rate: float
    gain: float
    peak: float
    blocks: int
    most_bytes: float = math.inf

    def seconds(self, size_bytes: float) -> float:
        """Estimated duration in seconds, by which NCCL compares symmetric kernels."""
        if size_bytes >= self.most_bytes:
            return math.inf
        most_us = self._blocks_us(size_bytes, self.blocks)
        few = next(n for n in range(1, self.blocks + 1) if self._blocks_us(size_bytes, n) <= _TOLERATED * most_us)
        return _US * self._blocks_us(size_bytes, few) * (1 + _EACH_BLOCK * few)

    def _blocks_us(self, size_bytes: float, blocks: int) -> float:
        """Microseconds with a number of blocks, by smooth versions of a minimum of rates and of a sum of times."""
        peak, smooth = self.peak, self.block_rate
        rate = peak - smooth * math.log1p(math.expm1(peak / smooth) * math.exp(-blocks * self.block_rate * self.gain / smooth))
        over = size_bytes * self.bus / rate - 1
        return self.base_us + (over if over > 100 else math.log1p(math.exp(over)))


def expected(algorithm: str, op: Op, links: GroupLinks, facts: Nccl) -> SymmetricCurve:
    """The estimate of NCCL for a symmetric kernel."""
    ranks, is_sum = links.group.size, op == "all_reduce"
    is_blackwell = facts.generation == "blackwell"
    block_rate = (55 if is_blackwell else 65 if is_sum else 44) * _GBps
    peak = (600 if is_blackwell else 320) * _GBps
    if algorithm == "symmetric_ll":
        base_us = (8.5 if op == "all_gather" else 11.0) if is_blackwell else 4.5
        bus = _LL_BYTES * (ranks if is_sum else 1.0)
        return SymmetricCurve(base_us, bus, block_rate, 1.0, peak, _MOST_BLOCKS, _LL_MOST_BYTES)
    base_us = (19.5 if is_sum else 13.0) if is_blackwell else 7.8
    if algorithm == "symmetric_direct":
        bus = (2 if is_sum else 1) * (ranks - 1) / ranks
        return SymmetricCurve(base_us, bus, block_rate, 1.0, peak, _MOST_BLOCKS)
    blocks = -(-_MULTIMEM_BLOCKS[facts.generation] // ranks)
    if is_sum:
        return SymmetricCurve(base_us, 1 + 1 / ranks, block_rate, ranks, (1000 if is_blackwell else 480) * _GBps, blocks)
    return SymmetricCurve(base_us, (ranks - 1) / ranks, block_rate, _MULTIMEM_GAIN * ranks, peak, blocks)
