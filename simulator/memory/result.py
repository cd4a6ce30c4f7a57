"""What ranks hold, by what holds it, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# In the order in which they are told.
HOLDERS: Final = (
    "parameters", "gradients", "master_parameters", "optimizer_states", "activations", "logits", "recomputed", "working",
    "communication", "workspace", "fragmentation", "library", "context",
)  # fmt: skip
# Of these the allocator holds more than is in use.
COMES_AND_GOES: Final = ("activations", "logits", "recomputed", "working")
# Beside what PyTorch's allocator gives out.
_OUTSIDE: Final = ("library", "context")


@dataclass(frozen=True)
class RankMemory:
    """What ranks of one kind hold at their peak. name: such as "stage 3". host_bytes: held by the host for them."""

    name: str
    holders_bytes: Mapping[str, float]
    host_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """What the device has in use, as nvidia-smi tells it."""
        return sum(self.holders_bytes.values())

    @property
    def reserved_bytes(self) -> float:
        """What PyTorch's allocator has taken of it (max_memory_reserved)."""
        return self.total_bytes - sum(self.holders_bytes.get(name, 0.0) for name in _OUTSIDE)

    @property
    def allocated_bytes(self) -> float:
        """What is in use of that (max_memory_allocated)."""
        return self.reserved_bytes - self.holders_bytes.get("fragmentation", 0.0)


@dataclass(frozen=True)
class MemoryUse:
    """ranks: the kinds of training ranks, by stage. servers: of a parameter server, in the memory of their hosts.
    capacity_bytes: of a device, or a process's part of its machine."""

    ranks: tuple[RankMemory, ...]
    servers: RankMemory | None
    capacity_bytes: float

    @property
    def worst(self) -> RankMemory:
        return max(self.ranks, key=lambda rank: rank.total_bytes)

    @property
    def fits(self) -> bool:
        return self.worst.total_bytes <= self.capacity_bytes
