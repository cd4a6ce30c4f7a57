"""Steps of a rank's trace: marked by the profiler, or found by the optimizer's calls or kernels that repeat."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TraceSpan

# torch.optim marks each call of an optimizer's step.
OPTIMIZER: Final = "Optimizer.step#"
_OPTIMIZER_KERNEL: Final = re.compile(
    r"multi_?tensor_?apply|fused_?(?:adam|sgd|lamb)|(?:adam|sgd|lamb|adagrad)_?(?:w|kernel|cuda)", re.I
)

# Share of the most computation between two calls of the optimizer from which on they belong to different steps.
_NEXT_STEP: Final = 0.02
# Resolution of a trace's clock.
_CLOCK_S: Final = 1e-9


@dataclass(frozen=True)
class RankSteps:
    """The steps of a rank that count. works: of each step. ends_s: end of the step before the first one, then of each step, on
    the device. skipped: steps left out as warm-up. found_by: in words."""

    works: Sequence[Sequence[DeviceWork]]
    ends_s: Sequence[float]
    skipped: int
    found_by: str


def is_optimizer_kernel(name: str) -> bool:
    """Whether a kernel updates parameters, or prepares it as multi-tensor kernels do."""
    return _OPTIMIZER_KERNEL.search(name) is not None


def steps_of(trace: Trace) -> RankSteps:
    """The steps of a trace, without the first of several marked ones, which contains warm-up of the profiler. Raises
    InputError if no steps are found."""
    if trace.has_steps:
        skipped = 1 if len(trace.steps) > 1 else 0
        found_by = "ProfilerStep marks" if skipped else "the only one in the trace"
        return _cut(trace, trace.steps[skipped:], skipped, found_by, by_launch=True)
    calls = [span for span, _ in trace.operators if span.name.startswith(OPTIMIZER)]
    calls += [span for span in trace.annotations if span.name.startswith(OPTIMIZER)]
    ends_s = _update_ends_s([(span.start_s, span.end_s) for span in calls], _computation(trace, launched=True))
    if len(ends_s) > 1:
        return _cut(trace, _between(ends_s), 0, "calls of the optimizer", by_launch=True)
    kernels = [(work.start_s, work.end_s) for work in trace.works if is_optimizer_kernel(work.name)]
    ends_s = _update_ends_s(kernels, _computation(trace, launched=False))
    if len(ends_s) > 1:
        return _cut(trace, _between(ends_s), 0, "repeated kernels of the optimizer", by_launch=False)
    raise InputError(
        f"{trace.path}: no steps found, neither ProfilerStep marks nor an optimizer that repeats; call profiler.step() after "
        "each step and record at least two"
    )


def _computation(trace: Trace, launched: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When passes' works began, or were launched, in ascending order, and the sum of their seconds up to each."""
    works = [work for work in trace.works if work.exchange is None and not is_optimizer_kernel(work.name)]
    at_s = np.array([work.launched_s if launched else work.start_s for work in works])
    order = np.argsort(at_s)
    seconds = np.array([work.end_s - work.start_s for work in works])
    return at_s[order], np.concatenate([[0.0], np.cumsum(seconds[order])])


def _update_ends_s(
    intervals: Sequence[tuple[float, float]], computation: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> list[float]:
    """Ends of the optimizer's updates. An update may consist of several intervals: those of different updates have the
    computation of a step between them, and others hardly any."""
    ordered = sorted(intervals)
    at_s, sums_s = computation
    edges_s = np.array([(before[1], after[0]) for before, after in pairwise(ordered)]).reshape(-1, 2)
    first, last = (np.searchsorted(at_s, edges_s[:, side]) for side in (0, 1))
    between_s = np.maximum(0.0, sums_s[last] - sums_s[first])
    is_step = between_s > _NEXT_STEP * between_s.max(initial=0.0)
    own_s = sum(end_s - start_s for start_s, end_s in ordered)
    if not is_step.any() or between_s[is_step].sum() < own_s:
        return []
    return [ordered[number][1] for number in np.flatnonzero(is_step)] + [ordered[-1][1]]


def _between(ends_s: Sequence[float]) -> list[TraceSpan]:
    return [TraceSpan(f"step {number}", *edges) for number, edges in enumerate(pairwise(ends_s), start=1)]


def _cut(trace: Trace, steps: Sequence[TraceSpan], skipped: int, found_by: str, by_launch: bool) -> RankSteps:
    """Works of each step, by when the host launched them or by when they began. Raises InputError for a step without works."""
    starts_s = [step.start_s for step in steps]
    works: list[list[DeviceWork]] = [[] for _ in steps]
    before_s = starts_s[0]
    earlier_s = [before_s]
    for work in sorted(trace.works, key=lambda work: work.start_s):
        # what begins as the optimizer ends belongs to the next step
        at_s = work.launched_s if by_launch else work.start_s + _CLOCK_S
        number = bisect.bisect_right(starts_s, at_s) - 1
        if number < 0:
            earlier_s.append(work.end_s)
        elif at_s <= steps[number].end_s:
            works[number].append(work)
    empty = next((step.name for step, own in zip(steps, works, strict=True) if not own), None)
    if empty is not None:
        raise InputError(f"{trace.path}: nothing runs in {empty}; record whole steps, with the device's activities")
    ends_s = [max(work.end_s for work in own) for own in works]
    # on the host steps end at their marks; a device ends a step's work later
    if not trace.has_device:
        ends_s = [step.end_s for step in steps]
        earlier_s = [before_s]
    return RankSteps(works, [min(max(earlier_s), min(work.start_s for work in works[0])), *ends_s], skipped, found_by)
