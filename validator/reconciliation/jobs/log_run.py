"""The measured run of a job's log: step times without warm-up, throughput, memory and losses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_change, format_time_s
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.run.breakdown import slope
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.reconciliation.jobs.log_formats import TIMES
from scaleproof.validator.reconciliation.jobs.logs import JobLog, LogRecord
from scaleproof.validator.record.step_time import slope_interval_s

# The first records are warm-up while they are longer than the median by this factor, up to this share of all.
_WARM: Final = 1.1
_MOST_WARM: Final = 0.2
# With fewer records than this, none is left out.
_FEWEST: Final = 3
# Records longer than the median by this factor contain an evaluation or a checkpoint.
_LONG: Final = 1.5
# Share by which steps are longer, or shorter, after an iteration than before it, from which on the log has two regimes, and the
# fewest records of each.
_SHIFTED: Final = 0.1
_FEWEST_OF_REGIME: Final = 5
# The shift over the deviation of steps of one regime.
_CLEAR: Final = 3.0
# Factor by which FLOPs counted by the software may differ, since some count half of causal attention.
_FLOPS: Final = 1.5


def run_of(log: JobLog, scenario: Scenario, notes: ImportNotes) -> Run:
    """The run of a log. Its breakdown is unknown, so that all of the step is "other". Raises InputError."""
    records = _by_iteration(log.records)
    steps_s = [_step_s(record, scenario, log) for record in records]
    skipped = warm_up(steps_s)
    notes.add(f"{log.path}: {len(records)} records of {log.software}; {_skipped_text(records, skipped)} left out as warm-up")
    records, steps_s = records[skipped:], steps_s[skipped:]
    step_ends_s = np.cumsum([0.0, *steps_s])
    step_s = slope(step_ends_s)
    long = sum(one > _LONG * step_s for one in steps_s)
    if long:
        more = f"more than {_LONG:g} times the median (evaluation, checkpoints)"
        notes.add(f"{log.path}: {long} of {len(steps_s)} records took {more}; the median ignores them")
    shift = _shift_words(records, steps_s)
    run = Run(
        origin="measured",
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        ranks=scenario.strategy.ranks,
        compute_ranks=scenario.strategy.training_ranks,
        samples=scenario.total_samples,
        step_time_s=step_s,
        step_times_s=tuple(steps_s),
        step_time_interval_s=slope_interval_s(step_ends_s),
        phase_s={},
        breakdown_s=dict.fromkeys(BREAKDOWN, 0.0) | {"other": step_s},
        losses=tuple(record["loss"] for record in records if "loss" in record),
        memory_bytes_per_rank=max([log.memory_bytes, *(record.get("memory_bytes", 0.0) for record in records)]) or None,
        capacity_bytes=scenario.cluster.device.memory_bytes,
        provenance={"log": f"{log.path.name} ({log.software})"} | ({"warnings": shift} if shift else {}),
    )
    # power depends on what the ranks do, which a log does not report
    run = replace(accounted(run, scenario), energy_J=None)
    _compare_flops(records, run, log, notes)
    return run


def warm_up(steps_s: Sequence[float]) -> int:
    """Number of first steps to leave out: the first, and those after it that are longer than usual."""
    if len(steps_s) < _FEWEST:
        return 0
    usual_s = statistics.median(steps_s)
    most = max(1, int(_MOST_WARM * len(steps_s)))
    return next((count for count in range(1, most) if steps_s[count] <= _WARM * usual_s), most)


def _shift_words(records: Sequence[LogRecord], steps_s: Sequence[float]) -> str:
    """A sentence about steps that last longer, or shorter, from some iteration on; empty where they do not."""
    if len(steps_s) < 2 * _FEWEST_OF_REGIME:
        return ""
    logarithms = np.log(steps_s)
    # the sum of deviations from the mean is extreme where the mean changes
    edges = np.abs(np.cumsum(logarithms - logarithms.mean()))[_FEWEST_OF_REGIME - 1 : -_FEWEST_OF_REGIME]
    first = _FEWEST_OF_REGIME + int(edges.argmax())
    parts = logarithms[:first], logarithms[first:]
    before, after = (float(np.median(part)) for part in parts)
    deviation = max(float(np.median(np.abs(part - np.median(part)))) for part in parts)
    if abs(after - before) < max(np.log1p(_SHIFTED), _CLEAR * deviation):
        return ""
    since = f"iteration {records[first]['iteration']:.0f}" if "iteration" in records[first] else f"record {first + 1}"
    sides = f"{format_time_s(float(np.exp(after)))}, before {format_time_s(float(np.exp(before)))}"
    change = format_change(float(np.exp(after - before)) - 1)
    return f"since {since} steps take {sides} ({change}): the log has two regimes, of which the step time is a mixture"


def _by_iteration(records: Sequence[LogRecord]) -> list[LogRecord]:
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


def _skipped_text(records: Sequence[LogRecord], skipped: int) -> str:
    if skipped == 0:
        return "none"
    last = records[skipped - 1].get("iteration")
    return f"the first {skipped}" + (f" (to iteration {last:.0f})" if last is not None else "")


def _step_s(record: LogRecord, scenario: Scenario, log: JobLog) -> float:
    """Seconds of a step, from the first quantity that the record has. Raises InputError for tokens without a sequence."""
    quantity = next(name for name in TIMES if record.get(name, 0.0) > 0)
    rate = record[quantity]
    if quantity == "step_s":
        return rate
    if quantity == "steps_per_s":
        return 1 / rate
    if quantity == "samples_per_s":
        return scenario.total_samples / rate
    tokens = scenario.tokens_per_sample
    if tokens is None:
        raise InputError(f"{log.path}: reports tokens per second, but {scenario.name}'s model reads none; check the scenario")
    gpus = scenario.strategy.training_ranks if quantity == "tokens_per_s_per_gpu" else 1
    return scenario.total_samples * tokens / (rate * gpus)


def _compare_flops(records: Sequence[LogRecord], run: Run, log: JobLog, notes: ImportNotes) -> None:
    """Notes FLOPs of a step that differ from the scenario's, where the log reports FLOP/s."""
    rates = [record["flops_per_s_per_gpu"] for record in records if "flops_per_s_per_gpu" in record]
    if not rates or not run.model_flops:
        return
    counted = statistics.median(rates) * run.compute_ranks * run.step_time_s
    ratio = counted / run.model_flops
    if not 1 / _FLOPS <= ratio <= _FLOPS:
        notes.add(
            f"{log.path}: its TFLOP/s per GPU times {format_time_s(run.step_time_s)} are {ratio:.2f} times the FLOPs of the "
            "scenario's step; check the scenario's model, sequence length and batch"
        )
