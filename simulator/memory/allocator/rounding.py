"""Rounding of requests and of segments to sizes of PyTorch's caching allocator."""

from __future__ import annotations

from typing import Final

MIB: Final = 2**20
# Sizes in c10/cuda/CUDACachingAllocator.cpp: multiple to which requests are rounded (kMinBlockSize); largest request of the
# small pool (kSmallSize); size of its segments (kSmallBuffer); size of the large pool's segments (kLargeBuffer) for requests
# below a limit (kMinLargeAlloc), from which on segments are a multiple (kRoundLarge).
ROUNDING_BYTES: Final = 512
SMALL_REQUEST_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_SEGMENT_BYTES: Final = 20 * MIB
SINGLE_SEGMENT_BYTES: Final = 10 * MIB
SEGMENT_ROUNDING_BYTES: Final = 2 * MIB


def rounded_up(size_bytes: int, multiple_bytes: int) -> int:
    """The smallest multiple that is not less than a size, in bytes."""
    return -(-size_bytes // multiple_bytes) * multiple_bytes
