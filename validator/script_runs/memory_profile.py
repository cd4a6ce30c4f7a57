"""Peak memory of a script's steps on the processor: what PyTorch's profiler counts of its allocator."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch

_ALLOCATION: Final = "[memory]"
_MARK: Final = "scaleproof: an optimizer's step ends"
# Operators that allocate for others.
_ALLOCATES: Final = "aten::empty"
_NEVER_NS: Final = sys.maxsize
# What gloo needs for a collective, which NCCL does not.
TRANSPORT: Final = "scaleproof: gloo"


class MemoryChange(NamedTuple):
    """An allocation, or its end if the size is negative. until_ns: when the operator that allocates it ends."""

    time_ns: int
    address: int
    size_bytes: int
    until_ns: int


class MemoryProfile:
    """Profiles the allocations of this thread from the script's begin on."""

    def __init__(self) -> None:
        self._profiler: Any = torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)

    def start(self) -> None:
        """Begins."""
        self._profiler.__enter__()

    def mark(self) -> None:
        """Notes that a step of an optimizer ends."""
        with torch.profiler.record_function(_MARK):
            pass

    def peaks_bytes(self) -> list[int]:
        """Ends; returns the most bytes that were allocated until the first mark, between each two marks, and after the last."""
        self._profiler.__exit__(None, None, None)
        marks: list[Any] = []
        found: list[tuple[Any, int]] = []
        for event, until_ns in _events(self._profiler.kineto_results.experimental_event_tree()):
            if event.name == _MARK:
                marks.append(event)
            elif event.name == _ALLOCATION:
                found.append((event, until_ns))
        threads = {mark.start_tid for mark in marks}
        changes = (
            MemoryChange(
                event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size,
                until_ns if event.start_tid in threads else _NEVER_NS,
            )
            for event, until_ns in found
        )  # fmt: skip
        return peaks_between(own_changes(changes), sorted(mark.start_time_ns for mark in marks))


def _events(roots: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """All events of a tree, and when the operator that each is a part of ends: never, for the transport of collectives."""
    left = [(root, 0) for root in roots]
    while left:
        event, until_ns = left.pop()
        yield event, until_ns
        if event.name == TRANSPORT or until_ns == _NEVER_NS:
            until_ns = _NEVER_NS
        elif not event.name.startswith(_ALLOCATES):
            until_ns = event.end_time_ns
        left += [(child, until_ns) for child in event.children]


def own_changes(changes: Iterable[MemoryChange]) -> list[tuple[int, int]]:
    """Times in nanoseconds and bytes, negative at ends, of the script's own allocations: those that outlive the operator that
    makes them, as others belong to the processor's kernels. Ends may be on any thread; one that was not seen is when the
    address is allocated again."""
    live: dict[int, MemoryChange] = {}
    own: list[tuple[int, int]] = []
    for change in sorted(changes):
        begun = live.pop(change.address, None)
        if begun is not None and change.time_ns > begun.until_ns:
            own += [(begun.time_ns, begun.size_bytes), (change.time_ns, -begun.size_bytes)]
        if change.size_bytes > 0:
            live[change.address] = change
    return sorted([*own, *((one.time_ns, one.size_bytes) for one in live.values() if one.until_ns < _NEVER_NS)])


def peaks_between(changes: Sequence[tuple[int, int]], marks_ns: Sequence[int]) -> list[int]:
    """The most live bytes until the first mark, between each two marks, and after the last. changes: times in nanoseconds, and
    bytes that are allocated then, or freed if negative, in order."""
    peaks, live, left = [0], 0, list(marks_ns)
    for time_ns, size in changes:
        while left and left[0] <= time_ns:
            left.pop(0)
            peaks.append(live)
        live += size
        peaks[-1] = max(peaks[-1], live)
    return [*peaks, *[live] * len(left)]
