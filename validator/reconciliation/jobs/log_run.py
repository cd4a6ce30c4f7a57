"""The measured run of a job's log: step times without warm-up, throughput, memory and losses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.run.breakdown import slope
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.reconciliation.jobs.iterations import by_iteration, findings, series, warm_up
from scaleproof.validator.reconciliation.jobs.log_formats import TIMES
from scaleproof.validator.reconciliation.jobs.logs import JobLog, LogRecord
from scaleproof.validator.record.step_time import slope_interval_s

# Records longer than the median by this factor contain an evaluation or a checkpoint.
_LONG: Final = 1.5
# Factor by which FLOPs counted by the software may differ, since some count half of causal attention.
_FLOPS: Final = 1.5


def run_of(log: JobLog, scenario: Scenario, notes: ImportNotes) -> Run:
    """The run of a log. Its breakdown is unknown, so that all of the step is "other". Raises InputError."""
    records = by_iteration(log.records)
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
    shifts = findings(series(log.path.name, records, steps_s))
    found = [f"{one.words}: the step time is a mixture" for one in shifts if one.cause in ("slower since", "drift")]
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
        provenance={"log": f"{log.path.name} ({log.software})"} | ({"warnings": "\n".join(found)} if found else {}),
    )
    # power depends on what the ranks do, which a log does not report
    run = replace(accounted(run, scenario), energy_J=None)
    _compare_flops(records, run, log, notes)
    return run


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
