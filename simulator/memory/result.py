"""Result of the memory model: bytes of ranks by holder, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.frameworks import MemoryBehaviour

# In the order in which they are reported.
HOLDERS: Final = (
    "parameters", "gradients", "master_parameters", "optimizer_states", "activations", "logits", "recomputed", "working",
    "communication", "workspace", "fragmentation", "library", "context",
)  # fmt: skip
# Holders that are allocated and freed within a step, so that the allocator's memory fragments.
TEMPORARY: Final = ("activations", "logits", "recomputed", "working")
# Holders outside of PyTorch's allocator.
OUTSIDE: Final = ("library", "context")


@dataclass(frozen=True)
class RankMemory:
    """Peak bytes of ranks of one kind by holder. name: such as "stage 3". host_bytes: offloaded to host memory. capacity_bytes:
    of its device, where devices differ."""

    name: str
    holders_bytes: Mapping[str, float]
    host_bytes: float = 0.0
    capacity_bytes: float | None = None

    @property
    def total_bytes(self) -> float:
        """Used bytes of the device, as nvidia-smi reports them."""
        return sum(self.holders_bytes.values())

    @property
    def reserved_bytes(self) -> float:
        """Bytes that PyTorch's allocator has reserved (max_memory_reserved)."""
        return self.total_bytes - sum(self.holders_bytes.get(name, 0.0) for name in OUTSIDE)

    @property
    def allocated_bytes(self) -> float:
        """Bytes that PyTorch's allocator has allocated to tensors (max_memory_allocated)."""
        return self.reserved_bytes - self.holders_bytes.get("fragmentation", 0.0)


class HostUse(NamedTuple):
    """Bytes that the ranks of a node keep on their host. place: host memory, or drives; field: of the cluster, with its
    capacity, None where it is not given. option: that puts them there. remedy: what to do where it does not suffice."""

    needed_bytes: float
    capacity_bytes: float | None
    place: str
    field: str
    option: str = "training.offload"
    remedy: str = "put less there, or give more nodes"

    @property
    def fits(self) -> bool:
        """Whether the capacity suffices, where it is known."""
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def problem(self) -> str:
        """That the capacity is not known, or does not suffice; empty if it does."""
        needed = f"{format_bytes(self.needed_bytes)} of a node's {self.place}"
        if self.capacity_bytes is None:
            return f"{self.option}: needs {needed}, which was not checked; give {self.field}"
        if self.fits:
            return ""
        return f"{self.option}: needs {needed}, which has {format_bytes(self.capacity_bytes)} ({self.field}); {self.remedy}"


@dataclass(frozen=True)
class MemoryUse:
    """Memory of all ranks of a scenario.

    ranks: kinds of training ranks, by stage. servers: the fullest parameter server, in host memory. capacity_bytes: of a
    device (where devices differ, of that whose rank needs the most of it), or a process's share of its machine. host: of a
    node, for what is offloaded, or for servers; None if there is nothing to check.
    """

    ranks: tuple[RankMemory, ...]
    servers: RankMemory | None
    capacity_bytes: float
    host: HostUse | None = None

    @property
    def worst(self) -> RankMemory:
        """The kind of training rank that needs the most of its device's memory."""
        return max(self.ranks, key=lambda rank: rank.total_bytes / max(1.0, rank.capacity_bytes or self.capacity_bytes))

    def reported_bytes(self, software: MemoryBehaviour) -> float:
        """Bytes that the logs of the software print: a figure of the fullest rank, or of the first."""
        ranks = self.ranks[:1] if software.reported_rank == "first" else self.ranks
        return max(float(getattr(rank, software.reports)) for rank in ranks)

    @property
    def fits(self) -> bool:
        """Whether the capacity suffices for all training ranks, and that of hosts for servers and what is offloaded, as far as
        it is known."""
        return self.worst.total_bytes <= self.capacity_bytes and (self.host is None or self.host.fits)
