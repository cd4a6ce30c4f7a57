"""What PyTorch's caching allocator reserves, as a section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.reports.descriptions.runs import largest
from scaleproof.reports.sections import Section
from scaleproof.simulator.common.units import counted, format_bytes, format_need, format_percent
from scaleproof.simulator.memory.allocator import AllocatorUse

_OUTSIDE: Final = {"library": "NCCL buffers", "context": "CUDA context"}


def describe(fixed: AllocatorUse, expandable: AllocatorUse) -> Section:
    """The memory of a rank, with the allocator's default segments and with expandable ones."""
    return Section("Allocator", "What the allocator reserves", facts={"allocator": list(_lines(fixed, expandable))})


def _lines(fixed: AllocatorUse, expandable: AllocatorUse) -> Iterator[str]:
    yield f"{fixed.rank}: {format_bytes(fixed.allocated_bytes)} allocated, {_reserved(fixed)}"
    outside = " and ".join(f"{_OUTSIDE[holder]} {format_bytes(size)}" for holder, size in fixed.outside_bytes.items() if size)
    yield f"total {_total(fixed)}, with {outside}"
    yield f"peak in {_moment(fixed)}: {', '.join(largest(fixed.served.holders_bytes))}"
    yield f"expandable segments: {_reserved(expandable)}, total {_total(expandable)}"


def _reserved(use: AllocatorUse) -> str:
    """'23.1 GiB reserved (fragmentation 1.20 GiB, 5.2 %)'."""
    share = format_percent(use.fragmentation_bytes / use.reserved_bytes)
    return f"{format_bytes(use.reserved_bytes)} reserved (fragmentation {format_bytes(use.fragmentation_bytes)}, {share})"


def _total(use: AllocatorUse) -> str:
    """'24.0 of 79.1 GiB (fits, 55.1 GiB to spare)'."""
    need = format_need(use.total_bytes, use.capacity_bytes)
    if not use.fits:
        return f"{need} (does not fit, {format_bytes(-use.spare_bytes)} too little)"
    freed = f" after cached memory was freed {counted(use.served.retries, 'time')}" if use.served.retries else ""
    return f"{need} (fits{freed}, {format_bytes(use.spare_bytes)} to spare)"


def _moment(use: AllocatorUse) -> str:
    """'the backward pass of microbatch 0, chunk 1, layer block7'."""
    if not use.layer:
        return f"the {use.phase}"
    chunk = f"chunk {use.chunk}, " if use.chunks > 1 else ""
    return f"the {use.phase} pass of microbatch {use.microbatch}, {chunk}layer {use.layer}"
