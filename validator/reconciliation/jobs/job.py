"""Measurement of a job that scaleproof did not start: reads its traces and its log, and makes one run of both."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.reconciliation.jobs import contradictions, log_run, logs, trace_run
from scaleproof.validator.reconciliation.jobs.logs import JobLog
from scaleproof.validator.reconciliation.jobs.trace_spans import TracedRank

# Difference between the step times of log and trace from which on it is noted.
_PROFILED: Final = 0.03


@dataclass(frozen=True)
class JobFiles:
    """Files of a job: traces of one or several ranks, and a log, in a format of `logs.names()` or in the one that is found."""

    traces: Sequence[Path] = ()
    log: Path | None = None
    log_format: str | None = None


@dataclass(frozen=True)
class MeasuredJob:
    """run: step time, breakdown, communication and spans, as far as the files show them. notes: on what was left out or
    assumed. ranks, log: what was read."""

    run: Run
    notes: tuple[str, ...]
    ranks: Sequence[TracedRank] = ()
    log: JobLog | None = None


def measured_job(scenario: Scenario, files: JobFiles, report: Callable[[str], None]) -> MeasuredJob:
    """The measured run of a job that runs a scenario. report: is called with the activity.

    Raises InputError for unreadable files, and for a job that contradicts the scenario.
    """
    notes = ImportNotes()
    logged = traced = log = None
    ranks: list[TracedRank] = []
    if files.log is not None:
        report(f"reading {files.log}")
        log = logs.read(files.log, files.log_format, notes)
        contradictions.check(log, scenario)
        logged = log_run.run_of(log, scenario, notes)
    traces = trace_run.read(files.traces, report, notes)
    if traces:
        report("finding steps and collectives")
        ranks = trace_run.ranks_of(traces, scenario)
        traced = trace_run.run_of(ranks, scenario, notes)
    run = _combined(traced, logged, notes)
    provenance = {"host": traces[0].host if traces else "", **run.provenance, "files": _words(files)}
    return MeasuredJob(replace(run, provenance=provenance), tuple(notes.lines()), ranks, log)


def _words(files: JobFiles) -> str:
    """The files as options of the command line, without their folders."""
    named = ["--trace", *(shlex.quote(path.name) for path in files.traces)] if files.traces else []
    return " ".join([*named, *(["--log", shlex.quote(files.log.name)] if files.log is not None else [])])


def _combined(traced: Run | None, logged: Run | None, notes: ImportNotes) -> Run:
    """The step time, losses and memory of the log, with the parts of the traced steps scaled to it: profiling slows steps."""
    if traced is None or logged is None:
        run = traced or logged
        assert run is not None
        return run
    ratio = logged.step_time_s / traced.step_time_s
    if abs(ratio - 1) > _PROFILED:
        times = f"{format_time_s(traced.step_time_s)} in the trace, {format_time_s(logged.step_time_s)} in the log"
        notes.add(f"steps take {times}; the log's step time is used, and the trace's parts are scaled to it")

    def scaled(parts_s: Mapping[str, float]) -> dict[str, float]:
        return {name: seconds * ratio for name, seconds in parts_s.items()}

    return replace(
        logged,
        phase_s=scaled(traced.phase_s),
        breakdown_s=scaled(traced.breakdown_s),
        communication_s=scaled(traced.communication_s),
        communication=tuple(part.scaled(ratio) for part in traced.communication),
        spans=traced.spans,
        rank_names=traced.rank_names,
        provenance={**logged.provenance, **traced.provenance},
    )
