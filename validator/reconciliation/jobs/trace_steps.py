"""Steps of a rank's trace: marked by the profiler, or found by the optimizer's calls or kernels that repeat."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TraceSpan

# torch.optim marks each call of an optimizer's step.
OPTIMIZER: Final = "Optimizer.step#"
_OPTIMIZER_KERNEL: Final = re.compile(
    r"multi_?tensor_?apply|fused_?(?:adam|sgd|lamb)|(?:adam|sgd|lamb|adagrad)_?(?:w|kernel|cuda)", re.I
)


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


def steps_of(trace: Trace, whole_is_step: bool) -> RankSteps:
    """The steps of a trace, without the first of several marked ones, which contains warm-up of the profiler.

    whole_is_step: whether a trace without marks has one step. Raises InputError if no steps are found.
    """
    if trace.has_steps:
        skipped = 1 if len(trace.steps) > 1 else 0
        return _cut(trace, trace.steps[skipped:], skipped, "ProfilerStep marks", by_launch=True)
    if whole_is_step:
        return _cut(trace, trace.steps, 0, "the whole trace as one step", by_launch=True)
    calls = sorted(span for span, _ in trace.operators if span.name.startswith(OPTIMIZER))
    calls += [span for span in trace.annotations if span.name.startswith(OPTIMIZER)]
    ends_s = _burst_ends_s([(span.start_s, span.end_s) for span in calls])
    if len(ends_s) > 1:
        return _cut(trace, _between(ends_s), 0, "calls of the optimizer", by_launch=True)
    kernels = [(work.start_s, work.end_s) for work in trace.works if is_optimizer_kernel(work.name)]
    ends_s = _burst_ends_s(kernels)
    if len(ends_s) > 1:
        return _cut(trace, _between(ends_s), 0, "repeated kernels of the optimizer", by_launch=False)
    raise InputError(
        f"{trace.path}: no steps found, neither ProfilerStep marks nor an optimizer that repeats; call profiler.step() after "
        "each step and record at least two"
    )


def _burst_ends_s(intervals: Sequence[tuple[float, float]]) -> list[float]:
    """Ends of bursts of intervals: the gaps between bursts are longer than any burst, and at least half of the longest gap."""
    ordered = sorted(intervals)
    gaps_s = [after[0] - before[1] for before, after in pairwise(ordered)]
    threshold_s = max(gaps_s, default=0.0) / 2
    last = [number for number, gap_s in enumerate(gaps_s) if gap_s >= threshold_s > 0]
    bursts = [ordered[begin + 1 : end + 1] for begin, end in pairwise([-1, *last, len(ordered) - 1])]
    longest_s = max((burst[-1][1] - burst[0][0] for burst in bursts if burst), default=0.0)
    is_repeated = len(bursts) > 1 and min(gaps_s[number] for number in last) > longest_s
    return [burst[-1][1] for burst in bursts] if is_repeated else []


def _between(ends_s: Sequence[float]) -> list[TraceSpan]:
    return [TraceSpan(f"step {number}", *edges) for number, edges in enumerate(pairwise(ends_s), start=1)]


def _cut(trace: Trace, steps: Sequence[TraceSpan], skipped: int, found_by: str, by_launch: bool) -> RankSteps:
    """Works of each step, by when the host launched them or by when they began. Raises InputError for a step without works."""
    starts_s = [step.start_s for step in steps]
    works: list[list[DeviceWork]] = [[] for _ in steps]
    before_s = starts_s[0]
    earlier_s = [before_s]
    for work in sorted(trace.works, key=lambda work: work.start_s):
        at_s = work.launched_s if by_launch else work.start_s
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
