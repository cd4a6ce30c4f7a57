"""Timing work on a device by events on its own time line, or by the host's clock on a CPU.

A round lies between two marks and repeats the work until it is long compared with the marks; the host waits for the device
between rounds only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch

_ROUND_S: Final = 1e-3
_MOST_PER_ROUND: Final = 200
_LEAST_ROUNDS: Final = 3
_WARM_UP: Final = 2


class DeviceTimer:
    """Marks on a device's time line and the seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_gpu: Final = device.type == "cuda"

    def mark(self) -> Any:
        """Mark at the completion of all work that has been submitted to the device."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Waits until the device has completed all submitted work."""
        if self.is_gpu:
            torch.cuda.synchronize(self._device)

    def seconds(self, first: Any, second: Any) -> float:
        """Seconds between two marks that have completed."""
        return float(first.elapsed_time(second) * 1e-3 if self.is_gpu else second - first)

    def median_s(self, step: Callable[[], object], budget_s: float) -> float:
        """Median seconds of a step, over at least three rounds and for at most about `budget_s`."""
        for _ in range(_WARM_UP):
            step()
        self.wait()
        until_s = time.perf_counter() + budget_s
        once_s = self._round_s(step, 1)
        count = max(1, min(_MOST_PER_ROUND, int(_ROUND_S / once_s)))
        rounds = [self._round_s(step, count) for _ in range(_LEAST_ROUNDS)]
        while time.perf_counter() < until_s:
            rounds.append(self._round_s(step, count))
        return statistics.median(rounds)

    def _round_s(self, step: Callable[[], object], count: int) -> float:
        begin = self.mark()
        for _ in range(count):
            step()
        end = self.mark()
        self.wait()
        return max(self.seconds(begin, end), 1e-9) / count
