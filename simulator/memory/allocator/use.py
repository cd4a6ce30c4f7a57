"""Memory that PyTorch's caching allocator reserves on the rank of a scenario that needs the most, and when."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.memory import capacity_bytes, memory
from scaleproof.simulator.memory.allocator.caching import CachingAllocator, DeviceFullError, ServedMemory, served
from scaleproof.simulator.memory.allocator.requests import allocations, rank_passes, rank_tensors
from scaleproof.simulator.memory.inputs import MemoryInputs, is_gpu
from scaleproof.simulator.memory.ranks import PipelineRank, rank_kinds
from scaleproof.simulator.memory.result import OUTSIDE
from scaleproof.simulator.memory.step import RankPass
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# The first allocates the optimizer's states; the second is like all later ones.
_STEPS: Final = 2


@dataclass(frozen=True)
class AllocatorUse:
    """Memory of one rank with the caching allocator, at its peak in a training step.

    rank: such as "stage 3". served: what the allocator served. outside_bytes: of libraries and the context, by holder. fits:
    whether all requests were served. chunk, microbatch: of the pass at the peak of allocated bytes; stage: of the model, whose
    layers were passed then. chunks: number of stages of the rank.
    """

    rank: str
    expandable: bool
    served: ServedMemory
    outside_bytes: Mapping[str, float]
    capacity_bytes: float
    fits: bool
    chunk: int = 0
    microbatch: int = 0
    stage: int = 0
    chunks: int = 1

    @property
    def allocated_bytes(self) -> int:
        """Maximum of allocated bytes, as torch.cuda.max_memory_allocated reports it."""
        return self.served.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Maximum of reserved bytes, as torch.cuda.max_memory_reserved reports it."""
        return self.served.reserved_bytes

    @property
    def phase(self) -> str:
        """Phase of the step at the peak of allocated bytes."""
        return self.served.last.phase if self.served.last is not None else "start"

    @property
    def layer(self) -> str:
        """Layer, or module of a script, that reached the peak of allocated bytes; "" if none did."""
        return self.served.last.module if self.served.last is not None else ""

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved bytes that are not allocated at the peak."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def total_bytes(self) -> float:
        """Used bytes of the device, as nvidia-smi reports them."""
        return self.reserved_bytes + sum(self.outside_bytes.values())

    @property
    def spare_bytes(self) -> float:
        """Bytes of the device that remain; negative if it has too few."""
        return self.capacity_bytes - self.total_bytes

    def plain(self) -> dict[str, Any]:
        """The figures as plain numbers, for JSON."""
        return {
            "rank": self.rank,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "fragmentation_bytes": self.fragmentation_bytes,
            "outside_bytes": dict(self.outside_bytes),
            "total_bytes": self.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "spare_bytes": self.spare_bytes,
            "fits": self.fits,
            "retries": self.served.retries,
            "peak": {name: getattr(self, name) for name in ("phase", "stage", "chunk", "microbatch", "layer")},
            "holders_bytes": {holder: size for holder, size in self.served.holders_bytes.items() if size},
        }


def allocator_use(scenario: Scenario, expandable: bool = False, rank: int | None = None) -> AllocatorUse:
    """The memory that two training steps reserve on a pipeline rank: by default the one that needs the most by `memory`.

    If the device has too little memory for all reserved bytes, cached memory is returned to it and requests are repeated, as
    PyTorch does; if that does not suffice, the result is that of a device with more memory. Raises InputError if the device of
    the scenario is no GPU, or nodes have different ones.
    """
    device = scenario.cluster.device
    if scenario.cluster.kinds:
        text = "cluster.nodes: PyTorch's caching allocator is modelled for nodes with equal devices; give one kind of nodes"
        raise InputError(f"{text}, or leave --memory out: memory is that of each kind then")
    if not is_gpu(device):
        described = "is described without kernels, from which GPUs are recognised" if device.kernels is None else "is no GPU"
        text = (
            f"cluster.device: {device.name} {described}; PyTorch's caching allocator is modelled for GPUs: "
            "give kernels, or base it on a device that ships, such as {base: a100-80gb-sxm, ...}"
        )
        raise InputError(text)
    if isinstance(scenario.strategy, CapturedStrategy):
        return _of_script(scenario, expandable)
    inputs, use = MemoryInputs(scenario), memory(scenario)
    number = use.ranks.index(use.worst) if rank is None else rank
    outside_bytes = {holder: use.ranks[number].holders_bytes[holder] for holder in OUTSIDE}
    available_bytes = use.capacity_bytes - sum(outside_bytes.values())
    passes = rank_passes(inputs, number)
    kind = next(kind for kind in rank_kinds(inputs) if number in kind.numbers)
    events = allocations(rank_tensors(PipelineRank(inputs, kind), number), passes, _STEPS)
    own = served(events, CachingAllocator(expandable=expandable))
    fits = own.reserved_bytes <= available_bytes
    if not fits:
        with contextlib.suppress(DeviceFullError):
            own, fits = served(events, CachingAllocator(available_bytes, expandable)), True
    assert own.last is not None
    place = passes[own.last.at] if own.last.module else RankPass(Pass.FORWARD, 0, 0)
    return AllocatorUse(
        rank=use.ranks[number].name,
        expandable=expandable,
        served=own,
        outside_bytes=outside_bytes,
        capacity_bytes=use.capacity_bytes,
        fits=fits,
        chunk=place.chunk,
        microbatch=place.microbatch,
        stage=inputs.plan.stage_of[number][place.chunk],
        chunks=inputs.plan.chunks,
    )


def _of_script(scenario: Scenario, expandable: bool) -> AllocatorUse:
    """The memory that a captured script reserves on the rank that needs the most."""
    from scaleproof.simulator.memory.captured import classes_memory

    device_bytes = capacity_bytes(scenario)
    one = max(classes_memory(scenario, expandable), key=lambda each: each.served.reserved_bytes)
    outside_bytes = {holder: one.outside_bytes.get(holder, 0.0) for holder in OUTSIDE}
    fits = one.served.reserved_bytes + sum(outside_bytes.values()) <= device_bytes
    return AllocatorUse(one.name, expandable, one.served, outside_bytes, device_bytes, fits)
