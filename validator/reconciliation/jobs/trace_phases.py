"""Phase of each kernel of a trace: forward, backward or optimizer, by the host's ranges in which it was launched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import Phase, TimeIntervals
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TraceSpan
from scaleproof.validator.calibration.imports.reading import as_number
from scaleproof.validator.reconciliation.jobs.trace_steps import OPTIMIZER, is_optimizer_kernel

# What the engine of autograd calls each operator of a backward pass.
_BACKWARD: Final = "autograd::engine::evaluate_function"


class Phases:
    """The phases of a rank's works. has_backward: whether the trace shows which works are backward passes."""

    def __init__(self, trace: Trace) -> None:
        operators = [(span, arguments) for span, arguments in trace.operators]
        marked = [span for span, _ in operators] + trace.annotations
        backward = [
            span
            for span, arguments in operators
            if span.name.startswith(_BACKWARD) or (as_number(arguments.get("Fwd thread id")) or 0) > 0
        ]
        self._backward = _Ranges(backward)
        self._optimizer = _Ranges(span for span in marked if span.name.startswith(OPTIMIZER))
        self.has_backward = bool(backward)

    def of(self, works: Sequence[DeviceWork]) -> list[Phase]:
        """Phase of each work."""
        is_backward, is_optimizer = self._backward.contain(works), self._optimizer.contain(works)
        phases = []
        for work, backward, optimizer in zip(works, is_backward.tolist(), is_optimizer.tolist(), strict=True):
            if optimizer or (work.exchange is None and is_optimizer_kernel(work.name)):
                phases.append(Phase.OPTIMIZER)
            else:
                phases.append(Phase.BACKWARD if backward else Phase.FORWARD)
        return phases


class _Ranges:
    """The union of ranges of each thread of the host."""

    def __init__(self, spans: Iterable[TraceSpan]) -> None:
        by_thread: dict[str, list[TraceSpan]] = {}
        for span in spans:
            by_thread.setdefault(span.thread, []).append(span)
        self._unions: dict[str, TimeIntervals] = {}
        for thread, own in by_thread.items():
            starts, ends = np.array([span.start_s for span in own]), np.array([span.end_s for span in own])
            self._unions[thread] = TimeIntervals(np.zeros(len(own), dtype=np.int64), starts, ends).union()

    def contain(self, works: Sequence[DeviceWork]) -> NDArray[np.bool_]:
        """Whether each work was launched within a range of its thread."""
        result = np.zeros(len(works), dtype=bool)
        launched_s = np.array([work.launched_s for work in works])
        threads = np.array([work.thread for work in works])
        for thread, union in self._unions.items():
            own = np.flatnonzero(threads == thread)
            index = np.searchsorted(union.start_s, launched_s[own], side="right") - 1
            result[own] = (index >= 0) & (launched_s[own] <= union.end_s[np.maximum(index, 0)])
        return result
