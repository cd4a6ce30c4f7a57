"""Peak memory of a script's steps on the processor: what PyTorch's profiler counts of its allocator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

_MEMORY: Final = "[memory]"
_MARK: Final = "scaleproof: an optimizer's step ends"


class MemoryProfile:
    """Profiles the allocations of this thread, and of those that work for it, from the script's begin on."""

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
        events = self._profiler.kineto_results.events()
        return peaks_between(
            [(event.start_ns(), event.nbytes()) for event in events if event.name() == _MEMORY],
            sorted(event.start_ns() for event in events if event.name() == _MARK),
        )


def peaks_between(changes: Sequence[tuple[int, int]], marks_ns: Sequence[int]) -> list[int]:
    """The most live bytes until the first mark, between each two marks, and after the last. changes: times in nanoseconds, and
    bytes that are allocated then, or freed if negative."""
    peaks, live, left = [0], 0, list(marks_ns)
    for time_ns, size in sorted(changes, key=lambda change: change[0]):
        while left and left[0] <= time_ns:
            left.pop(0)
            peaks.append(live)
        live += size
        peaks[-1] = max(peaks[-1], live)
    return [*peaks, *[live] * len(left)]
