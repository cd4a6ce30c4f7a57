"""What the step times of a log show over its iterations: changes, drifts, stalls and jitter."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Final

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Cause, Finding, Iterations
from scaleproof.simulator.common.units import counted, format_change, format_percent, format_time_s
from scaleproof.validator.calibration.imports.reading import clock_text
from scaleproof.validator.estimation.robust import FEWEST, Regime, Values, regimes, spikes, trend
from scaleproof.validator.reconciliation.jobs.log_formats import TIMES, Fact, Quantity
from scaleproof.validator.reconciliation.jobs.logs import JobLog, LogRecord

# Shares of a step from which on a stall or a change counts, and by which steps of a job with jitter vary.
_NOTICED: Final = 0.015
_CHANGED: Final = 0.04
_JITTER: Final = 0.08
_MOST_NUMBERS: Final = 4
# The first records are warm-up while they are longer than the median by this factor, up to this share of all; with fewer
# records than this, none is left out.
_WARM: Final = 1.1
_MOST_WARM: Final = 0.2
_FEWEST_WARM: Final = 3


@dataclass(frozen=True)
class StepSeries:
    """Step times in order, without warm-up. name: of the file. noun: what numbers count. numbers, times: of each step; times
    may be empty. lines: in the file. is_relative: whether values are only proportional to seconds. retries: of the memory
    allocator in each step; may be empty."""

    name: str
    noun: str
    numbers: Sequence[int]
    values: Values
    times: Sequence[str] = ()
    lines: Sequence[int] = ()
    is_relative: bool = False
    retries: Sequence[float] = ()

    @cached_property
    def regimes(self) -> list[Regime]:
        """Stretches between which the level of the values changes."""
        return regimes(self.values)

    def place(self, position: int) -> str:
        """'iteration 61 (10:01:20)'."""
        time = f" ({self.times[position]})" if self.times and self.times[position] else ""
        return f"{self.noun} {self.numbers[position]}{time}"

    def record(self) -> Iterations:
        """As data for pages."""
        starts = tuple(part.first for part in self.regimes[1:])
        seconds = tuple(self.values.tolist())
        unit = "relative" if self.is_relative else "s"
        return Iterations(
            name=self.name, numbers=tuple(self.numbers), seconds=seconds, times=tuple(self.times), starts=starts, unit=unit
        )


def series_of(log: JobLog) -> StepSeries:
    """The series of a log whose scenario is unknown: in seconds if the log reports what its rates mean."""
    records = by_iteration(log.records)
    quantity = next(name for name in TIMES if all(record.get(name, 0.0) > 0 for record in records))
    facts = {name: fact.value for name, fact in log.facts.items()}
    amounts: dict[Quantity, Sequence[Fact]] = {
        "samples_per_s": ("global_batch",),
        "tokens_per_s": ("global_batch", "sequence"),
        "tokens_per_s_per_gpu": ("global_batch", "sequence"),
    }
    needed = amounts.get(quantity, ())
    is_relative = not all(name in facts for name in needed) or (quantity == "tokens_per_s_per_gpu" and "gpus" not in facts)
    amount = 1.0 if is_relative else float(prod(facts[name] for name in needed))
    if quantity == "tokens_per_s_per_gpu" and not is_relative:
        amount /= facts["gpus"]
    values = [record[quantity] if quantity == "step_s" else amount / record[quantity] for record in records]
    skipped = warm_up(values)
    return series(log.path.name, records[skipped:], values[skipped:], is_relative)


def warm_up(steps_s: Sequence[float]) -> int:
    """Number of first steps to leave out: the first, and those after it that are longer than usual."""
    if len(steps_s) < _FEWEST_WARM:
        return 0
    usual_s = statistics.median(steps_s)
    most = max(1, int(_MOST_WARM * len(steps_s)))
    return next((count for count in range(1, most) if steps_s[count] <= _WARM * usual_s), most)


def by_iteration(records: Sequence[LogRecord]) -> list[LogRecord]:
    """One record for each iteration, in order: the medians of what ranks report of it."""
    if not all("iteration" in record for record in records):
        return list(records)
    same: dict[float, list[LogRecord]] = {}
    for record in records:
        same.setdefault(record["iteration"], []).append(record)
    return [
        {name: statistics.median(record[name] for record in own if name in record) for name in own[0]}
        for _, own in sorted(same.items())
    ]


def series(name: str, records: Sequence[LogRecord], values: Sequence[float], is_relative: bool = False) -> StepSeries:
    """The series of a log's records and their step times."""
    is_numbered = all("iteration" in record for record in records)
    numbers = [round(record["iteration"]) if is_numbered else place for place, record in enumerate(records, start=1)]
    times = [clock_text(record["clock_s"]) if "clock_s" in record else "" for record in records]
    lines = [round(record.get("line", 0.0)) for record in records]
    noun = "iteration" if is_numbered else "record"
    retries = [record.get("retries", 0.0) for record in records]
    return StepSeries(name, noun, numbers, np.array(values), times if any(times) else (), lines, is_relative, retries)


def findings(steps: StepSeries) -> Iterator[Finding]:
    """What is slower than before, the largest loss first."""
    if any(steps.retries):
        found, steps = _retries(steps)
        yield found
    if len(steps.values) < 2 * FEWEST:
        return
    parts, usual = steps.regimes, float(np.median(steps.values))
    rise = trend(steps.values, parts)
    if rise is not None:
        first, last = steps.place(0), steps.place(len(steps.values) - 1)
        words = f"steps become slower steadily: {format_change(rise)} from {first} to {last}"
        # mean of a growth at a constant rate, whose middle is usual, above its first value
        lost = usual / (1 + rise) ** 0.5 * (rise / float(np.log1p(rise)) - 1)
        yield _finding(steps, "drift", words, lost, usual, 0, len(steps.values) - 1, f"since {first}")
    else:
        yield from _changes(steps, parts)
    yield from _stalls(steps, parts, usual)
    noise = float(np.median([part.scatter for part in parts]))
    if noise > _JITTER:
        words = f"step times vary by {format_percent(noise)} from one to the next"
        # against a step that a quarter of all steps reach
        lost = float(np.mean(np.maximum(0.0, steps.values - np.quantile(steps.values, 0.25))))
        if rise is None and len(parts) == 1:
            yield _finding(steps, "jitter", words, lost, usual, 0, len(steps.values) - 1, "")


def _retries(steps: StepSeries) -> tuple[Finding, StepSeries]:
    """What retries of the memory allocator cost, and the series without that."""
    retried = np.array(steps.retries) > 0
    usual = float(np.median(steps.values[~retried])) if not retried.all() else float(steps.values.min())
    first, last = np.flatnonzero(retried)[[0, -1]].tolist()
    lost = float(np.maximum(0.0, steps.values[retried] - usual).sum()) / len(steps.values)
    number = counted(round(sum(steps.retries)), "time")
    words = f"the memory allocator ran out, freed its cache and retried {number}, in {retried.sum()} of {len(retried)} steps"
    words += f" ({steps.noun} {steps.numbers[first]}{f' to {steps.numbers[last]}' if last > first else ''})"
    found = _finding(
        steps, "memory retries", words, lost, float(np.mean(steps.values)), first, last, f"since {steps.place(first)}"
    )
    return found, replace(steps, values=np.where(retried, np.minimum(steps.values, usual), steps.values))


def _changes(steps: StepSeries, parts: Sequence[Regime]) -> Iterator[Finding]:
    """Regimes that are slower than the fastest one before them."""
    best = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        if part.level <= best.level * (1 + _CHANGED):
            best = min(best, part, key=lambda one: one.level)
            continue
        previous = parts[number - 1]
        is_rise = part.level > previous.level
        if not is_rise:
            continue
        change = part.level / best.level - 1
        is_last = number == len(parts) - 1
        since = f"since {steps.place(part.first)}"
        since += "" if is_last else f" until {steps.place(part.last)}"
        sides = format_change(change)
        if not steps.is_relative:
            sides = f"{format_time_s(part.level)}, before {format_time_s(best.level)} ({sides})"
        words = f"{since} steps take {sides}"
        lost = part.level - best.level
        noise = np.hypot(*(one.scatter * one.level / np.sqrt(one.last - one.first + 1) for one in (part, best)))
        found = _finding(steps, "slower since", words, lost, part.level, part.first, part.last, since)
        yield found.model_copy(update={"error": float(noise) / lost})


def _stalls(steps: StepSeries, parts: list[Regime], usual: float) -> Iterator[Finding]:
    """Single steps that take much longer than others."""
    found = spikes(steps.values, parts)
    if found is None:
        return
    lost = found.excess / len(steps.values)
    if lost < _NOTICED * usual:
        return
    each = found.excess / len(found.positions)
    longer = format_percent(each / usual, 0) if steps.is_relative else format_time_s(each)
    numbers = [steps.numbers[position] for position in found.positions.tolist()]
    if found.period:
        every = round(float(np.median(np.diff(numbers))))
        reason = "a checkpoint, an evaluation or garbage collection"
        words = f"every {every} {steps.noun}s a step takes {longer} longer: {reason}"
        yield _finding(steps, "periodic stall", words, lost, usual, found.positions[0], found.positions[-1], f"every {every}")
        return
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS])) + (" …" if len(numbers) > _MOST_NUMBERS else "")
    words = f"{counted(len(numbers), 'step')} of {len(steps.values)} took {longer} longer on average ({steps.noun} {shown})"
    yield _finding(steps, "stalls", words, lost, usual, found.positions[0], found.positions[-1], "")


def _finding(
    steps: StepSeries, cause: Cause, words: str, lost: float, step: float, first: int, last: int, since: str
) -> Finding:
    share = lost / step
    loss = f"{format_percent(share)} of each step"
    costs = loss if steps.is_relative or cause == "slower since" else f"{format_time_s(lost)}, {loss}"
    source = f"{steps.name}:{steps.lines[first]}" if steps.lines and steps.lines[first] else steps.name
    return Finding(
        cause=cause,
        words=words if cause == "slower since" else f"{words}; it costs {costs}",
        share=share,
        loss_s=None if steps.is_relative else lost,
        where="all ranks",
        since=since,
        first=steps.numbers[first],
        last=steps.numbers[last],
        confidence="high" if cause in ("slower since", "periodic stall") else "medium",
        source=source,
    )
