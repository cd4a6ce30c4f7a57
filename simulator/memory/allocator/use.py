"""Memory that PyTorch's caching allocator reserves on the rank of a scenario that needs the most, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.memory import capacity_bytes, memory
from scaleproof.simulator.memory.allocator.caching import CachingAllocator, DeviceFullError
from scaleproof.simulator.memory.allocator.passes import rank_passes
from scaleproof.simulator.memory.allocator.step import StepMoment, TrainingSteps
from scaleproof.simulator.memory.allocator.tensors import rank_tensors
from scaleproof.simulator.memory.inputs import MemoryInputs, is_gpu
from scaleproof.simulator.memory.ranks import rank_kinds
from scaleproof.simulator.memory.result import OUTSIDE
from scaleproof.simulator.parallelism import CapturedStrategy
from scaleproof.simulator.scenario.schema import Scenario

# The first allocates the optimizer's states; the second is like all later ones.
_STEPS: Final = 2


@dataclass(frozen=True)
class AllocatorUse:
    """Memory of one rank with the caching allocator, at its peak in a training step.

    rank: such as "stage 3". allocated_bytes, reserved_bytes: maxima, as torch.cuda.max_memory_allocated and
    max_memory_reserved report them. outside_bytes: of libraries and the context, by holder. retries: requests for which cached
    memory had to be returned to the device. fits: whether all requests were served. moment: time of the peak of allocated
    bytes; stage: of the model, whose layers were passed then. chunks: number of stages of the rank. holders_bytes: allocated
    bytes at that time, by holder.
    """

    rank: str
    expandable: bool
    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: Mapping[str, float]
    capacity_bytes: float
    retries: int
    fits: bool
    moment: StepMoment
    stage: int
    chunks: int
    holders_bytes: Mapping[str, int]

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
        phase, chunk, microbatch, layer = self.moment
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
            "retries": self.retries,
            "peak": {"phase": phase, "stage": self.stage, "chunk": chunk, "microbatch": microbatch, "layer": layer},
            "holders_bytes": {holder: size for holder, size in self.holders_bytes.items() if size},
        }


def allocator_use(scenario: Scenario, expandable: bool = False, rank: int | None = None) -> AllocatorUse:
    """The memory that two training steps reserve on a pipeline rank: by default the one that needs the most by `memory`.

    If the device has too little memory for all reserved bytes, cached memory is returned to it and requests are repeated, as
    PyTorch does; if that does not suffice, the result is that of a device with more memory. Raises InputError if the device of
    the scenario is no GPU.
    """
    device = scenario.cluster.device
    if not is_gpu(device):
        described = "is described without kernels, from which GPUs are recognised" if device.kernels is None else "is no GPU"
        text = (
            f"cluster.device: {device.name} {described}; PyTorch's caching allocator is modelled for GPUs: "
            "give kernels, or base it on a device that ships, such as {base: a100-80gb-sxm, ...}"
        )
        raise InputError(text)
    if isinstance(scenario.strategy, CapturedStrategy):
        return _of_script(scenario, expandable)
    setting, use = MemoryInputs(scenario), memory(scenario)
    number = use.ranks.index(use.worst) if rank is None else rank
    outside_bytes = {holder: use.ranks[number].holders_bytes[holder] for holder in OUTSIDE}
    available_bytes = use.capacity_bytes - sum(outside_bytes.values())
    steps, allocator = _steps(setting, number, expandable, math.inf)
    fits = allocator.peak_reserved_bytes <= available_bytes
    if not fits:
        try:
            steps, allocator = _steps(setting, number, expandable, available_bytes)
            fits = True
        except DeviceFullError:
            pass
    return AllocatorUse(
        rank=use.ranks[number].name,
        expandable=expandable,
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        outside_bytes=outside_bytes,
        capacity_bytes=use.capacity_bytes,
        retries=allocator.retries,
        fits=fits,
        moment=steps.moment,
        stage=setting.plan.stage_of[number][steps.moment.chunk],
        chunks=setting.plan.chunks,
        holders_bytes=steps.holders_bytes,
    )


def _of_script(scenario: Scenario, expandable: bool) -> AllocatorUse:
    """The memory that a captured script reserves on the rank that needs the most."""
    from scaleproof.simulator.memory.captured import classes_memory

    device_bytes = capacity_bytes(scenario)
    one = max(classes_memory(scenario, expandable), key=lambda each: each.served.reserved_bytes)
    served, last = one.served, one.served.live.peak.last
    outside_bytes = {holder: one.outside_bytes.get(holder, 0.0) for holder in OUTSIDE}
    return AllocatorUse(
        rank=one.name,
        expandable=expandable,
        allocated_bytes=served.allocated_bytes,
        reserved_bytes=served.reserved_bytes,
        outside_bytes=outside_bytes,
        capacity_bytes=device_bytes,
        retries=0,
        fits=served.reserved_bytes + sum(outside_bytes.values()) <= device_bytes,
        moment=StepMoment(last.phase, 0, 0, last.module) if last is not None else StepMoment("start", 0, 0, ""),
        stage=0,
        chunks=1,
        holders_bytes=served.live.peak.holders_bytes,
    )


def _steps(
    setting: MemoryInputs, number: int, expandable: bool, capacity_bytes: float
) -> tuple[TrainingSteps, CachingAllocator]:
    """The steps of a rank that an allocator with a capacity has served. Raises DeviceFullError if it is too little."""
    allocator = CachingAllocator(capacity_bytes, expandable)
    steps = TrainingSteps(rank_tensors(setting, rank_kinds(setting)[number], number), rank_passes(setting, number), allocator)
    steps.run(_STEPS)
    return steps, allocator
