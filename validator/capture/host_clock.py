"""Time of the script's own host code between operators, without the time of recording them."""

from __future__ import annotations

import contextlib
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

# Processor time of the calling thread, which other work on the machine does not change.
_now: Final = time.thread_time
_REPEATS: Final = 101


class _ThreadTimes(threading.local):
    def __init__(self) -> None:
        self.left_s: float | None = None
        self.pending_s = 0.0
        self.depth = 0


class HostClock:
    """Follows each thread. PyTorch's own time for calling a recorded operator and passing it a list does not count."""

    def __init__(self) -> None:
        self._own = _ThreadTimes()
        self._call_s = self._listed_s = 0.0

    @contextlib.contextmanager
    def recording(self, arguments: Sequence[Any] | None = None) -> Iterator[None]:
        """A context in which something is recorded, whose time does not count as the script's. arguments: of an operator."""
        self._enter(self._call_s + self._listed_s * _listed(arguments) if arguments is not None else 0.0)
        try:
            yield
        finally:
            self._leave()

    def ignore_collections(self) -> None:
        """Leaves out Python's garbage collections, which look at all that has been recorded."""
        gc.callbacks.append(lambda phase, _: self._enter(0.0) if phase == "start" else self._leave())

    def _enter(self, called_s: float) -> None:
        own = self._own
        own.depth += 1
        if own.depth == 1 and own.left_s is not None:
            own.pending_s += max(0.0, _now() - own.left_s - called_s)

    def _leave(self) -> None:
        own = self._own
        own.depth -= 1
        if own.depth == 0:
            own.left_s = _now()

    def taken_s(self) -> float:
        """Seconds of the script on this thread since the last call of this function."""
        own = self._own
        pending_s, own.pending_s = own.pending_s, 0.0
        return pending_s

    def calibrate(self, call: Callable[[], object], call_with_list: Callable[[], object], listed: int) -> None:
        """Measures the time of a call, and of each element of a list. The calls must be recorded; the second has `listed`
        elements in lists."""
        self._call_s = self._between_s(call)
        self._listed_s = self._between_s(call_with_list) / listed

    def _between_s(self, call: Callable[[], object]) -> float:
        taken_s = []
        for _ in range(_REPEATS):
            call()
            self.taken_s()
            call()
            taken_s.append(self.taken_s())
        return statistics.median(taken_s)


def _listed(arguments: Sequence[Any]) -> int:
    return sum(len(one) for one in arguments if isinstance(one, (list, tuple)))
