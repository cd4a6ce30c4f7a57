"""PyTorch's caching allocator: reserved bytes of a rank, fragmentation, and when the peak occurs."""

from __future__ import annotations

from scaleproof.simulator.memory.allocator.caching import CachingAllocator, DeviceFullError
from scaleproof.simulator.memory.allocator.use import AllocatorUse, allocator_use

__all__ = ["AllocatorUse", "CachingAllocator", "DeviceFullError", "allocator_use"]
