"""Reconciliation of a job that scaleproof did not start, from its traces and its log. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.output import print_json, working
from scaleproof.commands.text.tables import table, wrapped

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.diagnosis import Diagnosis
    from scaleproof.simulator.run.records import CommunicationPart
    from scaleproof.simulator.run.run import Run
    from scaleproof.validator.reconciliation.jobs.comparison import PhaseDifference
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase

# Findings in front of the comparison.
_MOST_FAULTS: Final = 3
# error: of a total, relative to the measured value; of a phase, relative to the measured step
_TITLES: Final = ("", "predicted", "measured", "difference", "error")


def reconcile_job(options: argparse.Namespace) -> list[ReconciledCase]:
    """Compares the one scenario of the command line with the job's files, writes the case with --out, and prints it."""
    from scaleproof.reports.descriptions.diagnosis import sentences
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator import results
    from scaleproof.validator.diagnosis.diagnose import of_job
    from scaleproof.validator.reconciliation.jobs.comparison import volume_warnings, with_passes
    from scaleproof.validator.reconciliation.jobs.job import JobFiles, measured_job
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase, keep, write

    if len(options.scenarios) != 1:
        raise InputError("--trace and --log are of one job; give one scenario")
    if options.update is not None:
        raise InputError("--update needs runs that scaleproof measures; leave it out with --trace and --log")
    scenario = load(options.scenarios[0], options.overrides)
    if options.out is not None:
        results.prepare(options.out)
    with working(f"reading the job of {scenario.name}") as report:
        job = measured_job(scenario, JobFiles(options.trace, options.log, options.log_format), report)
        report(f"predicting {scenario.name}")
        predicted = predict(scenario)
    found = of_job(job.ranks, [job.log] if job.log is not None else [])
    measured = with_passes(job.run, predicted)
    # a log's run has the warning that its step time is a mixture
    said = [words for words in sentences(found.findings) if not any(one.startswith(words) for one in measured.warnings)]
    measured = measured.warned(*said, *volume_warnings(predicted, measured))
    case = ReconciledCase(scenario, predicted, measured)
    if options.out is not None:
        keep(case, options.out)
        write([case], options.out, options.max_error)
    for note in job.notes:
        print(note, file=sys.stderr)
    if options.json:
        print_json(plain(case, found) | {"notes": list(job.notes)})
    else:
        by = ", ".join(text for name, text in measured.provenance.items() if name in ("trace", "log"))
        print(describe(case, options.steps, by, found))
    return [case]


def plain(case: ReconciledCase, diagnosis: Diagnosis | None = None) -> dict[str, Any]:
    """The case, its phases and what slows the job, as plain data for JSON."""
    from scaleproof.validator.reconciliation.jobs.comparison import phases

    assert case.measured is not None
    found = [phase.plain() for phase in phases(case.predicted, case.measured, _slow(case, diagnosis)[0])]
    findings = [one.to_dict() for one in diagnosis.findings] if diagnosis else []
    return case.plain() | {"phases": found, "findings": findings}


def describe(case: ReconciledCase, steps: bool, measured_by: str, diagnosis: Diagnosis | None = None) -> str:
    """Console text: what slows the job, totals, phases and communication of both sides, and what the differences suggest;
    single steps, if `steps`."""
    from scaleproof.commands.text.runs import describe_steps
    from scaleproof.simulator.common.errors import printable
    from scaleproof.validator.reconciliation.jobs.comparison import phases

    assert case.measured is not None
    slow, sentences = _slow(case, diagnosis)
    found, faults = phases(case.predicted, case.measured, slow), sentences[:_MOST_FAULTS]
    lines = [line for words in faults for line in wrapped(words)]
    lines += [f"{case.scenario.name}: {case.predicted.strategy} on {case.predicted.ranks} ranks; measured: {measured_by}", ""]
    lines += table([_TITLES, *_totals(case, case.measured), *_rows(found, case.measured)], "<>>>>")
    lines += _communication(case.predicted, case.measured)
    lines += ["", *describe_steps(case.steps)] if steps and case.steps else []
    lines += ["", *_sentences(case, found, faults)]
    return printable("\n".join(lines))


def _slow(case: ReconciledCase, diagnosis: Diagnosis | None) -> tuple[list[str], list[str]]:
    """Ranks that others wait for, and sentences on what slows the job: of its diagnosis, or else of the run's spans."""
    from scaleproof.reports.descriptions.diagnosis import sentences

    if diagnosis is not None:
        return [one.where for one in diagnosis.faults if one.ranks], sentences(diagnosis.findings)
    detected = () if case.explanation is None else case.explanation.faults
    slow = [fault for fault in detected if fault.kind in ("compute", "jitter", "input")]
    return [who for fault in slow for who in fault.who], [fault.words for fault in slow]


def _totals(case: ReconciledCase, measured: Run) -> list[tuple[str, ...]]:
    """Rows of what a whole step has: time, throughput, utilisation and memory."""
    from scaleproof.simulator.common.units import format_bytes, format_change_s, format_number, format_percent, format_time_s

    sides = case.predicted, measured
    unit = "rank" if case.scenario.cluster.computes_on_processors else "GPU"
    off_s = case.predicted.step_time_s - measured.step_time_s
    rows = [_row("step time", [format_time_s(run.step_time_s) for run in sides], format_change_s(off_s), case.error)]
    if all(run.tokens_per_s_per_rank for run in sides):
        rows.append(_row(f"tokens/s per {unit}", [format_number(run.tokens_per_s_per_rank or 0.0) for run in sides]))
    else:
        rows.append(_row("samples/s", [format_number(run.samples_per_s) for run in sides]))
    if all(run.mfu for run in sides):
        rows.append(_row("MFU", [format_percent(run.mfu or 0.0) for run in sides]))
    if all(run.memory_bytes_per_rank for run in sides):
        bytes_of = [run.memory_bytes_per_rank or 0.0 for run in sides]
        rows.append(_row(f"memory per {unit}", [*map(format_bytes, bytes_of)], error=bytes_of[0] / bytes_of[1] - 1))
    return rows


def _row(name: str, sides: Sequence[str], difference: str = "", error: float | None = None) -> tuple[str, ...]:
    from scaleproof.simulator.common.units import format_change

    return name, *sides, difference, "" if error is None else format_change(error)


def _rows(found: Sequence[PhaseDifference], measured: Run) -> list[tuple[str, ...]]:
    """Rows of the phases, the largest difference first, with its share of the measured step."""
    from scaleproof.simulator.common.units import format_change_s, format_time_s

    rows = []
    for phase in found:
        sides = [format_time_s(phase.predicted_s), format_time_s(phase.measured_s)]
        share = phase.difference_s / measured.step_time_s
        rows.append(_row(f"  {phase.label}", sides, format_change_s(phase.difference_s), share))
    return rows


def _communication(predicted: Run, measured: Run) -> list[str]:
    """Table of the communication of a rank in a step, predicted / measured; without lines where a side does not know it."""
    from scaleproof.simulator.common.units import format_bytes, format_time_s
    from scaleproof.validator.reconciliation.jobs.comparison import communication

    def both(pair: Sequence[CommunicationPart], text: Callable[[CommunicationPart], str]) -> str:
        return " / ".join(text(part) if part.calls or part.time_s else "-" for part in pair)

    rows: list[tuple[str, ...]] = [("predicted / measured", "calls", "bytes", "in flight", "exposed", "GB/s")]
    for pair in communication(predicted, measured):
        cells: list[Callable[[CommunicationPart], str]] = [
            lambda part: f"{part.calls:.4g}",
            lambda part: format_bytes(part.size_bytes) if part.size_bytes else "unknown",
            lambda part: format_time_s(part.time_s),
            lambda part: format_time_s(part.exposed_s),
            lambda part: f"{part.size_bytes / part.time_s / 1e9:.3g}" if part.time_s else "-",
        ]
        rows.append((f"  {pair[0].label}", *(both(pair, cell) for cell in cells)))
    return ["", *table(rows, "<>>>>>")] if len(rows) > 1 else []


def _sentences(case: ReconciledCase, found: Sequence[PhaseDifference], said: Sequence[str]) -> list[str]:
    """What the comparison says: the interval, each large difference, and warnings but for those that were said before."""
    from scaleproof.simulator.common.units import format_time_s

    assert case.measured is not None
    sentences = []
    if case.predicted.prediction_interval_s is not None:
        low, high = map(format_time_s, case.predicted.prediction_interval_s)
        sentences.append(f"the measured step time is {'' if case.inside else 'not '}in the 90 % interval, {low} to {high}")
    sentences += [phase.words for phase in found if phase.words]
    if case.explanation is not None and not found:
        sentences += case.explanation.sentences
    sentences += [f"warning: {warning}" for warning in case.measured.warnings if not warning.startswith(tuple(said))]
    return [line for sentence in sentences for line in wrapped(sentence)]
