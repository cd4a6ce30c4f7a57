"""Diagnosis of a job from its files: findings of all analyses in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Diagnosis, Finding, Iterations, RankTimes
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.diagnosis.clocks import diagnose_clocks
from scaleproof.validator.diagnosis.communication import diagnose_communication
from scaleproof.validator.diagnosis.files import JobEvidence, read
from scaleproof.validator.diagnosis.logged import by_job, diagnose_logs
from scaleproof.validator.diagnosis.memory import diagnose_memory
from scaleproof.validator.diagnosis.pairwise import diagnose_tests
from scaleproof.validator.diagnosis.stuck import diagnose_dumps
from scaleproof.validator.diagnosis.traced import diagnose_ranks
from scaleproof.validator.reconciliation.jobs import iterations
from scaleproof.validator.reconciliation.jobs.logs import JobLog
from scaleproof.validator.reconciliation.jobs.trace_spans import TracedRank

# Fewest steps of traces that are a series.
_SERIES: Final = 10


def diagnose(paths: Sequence[Path], report: Callable[[str], None]) -> tuple[Diagnosis, JobEvidence]:
    """What files show, and their contents. Raises InputError if none can be used."""
    notes = ImportNotes()
    evidence = read(paths, report, notes)
    report("comparing ranks, hosts and iterations")
    tested, hosts = diagnose_tests(evidence.tests)
    others = [
        *diagnose_clocks(evidence.devices), *diagnose_dumps(evidence.dumps), *diagnose_memory(evidence.memory),
        *diagnose_communication(evidence.comms, notes),
    ]  # fmt: skip
    job = of_job(evidence.ranks, evidence.logs, [*tested, *others])
    memory = sorted((one.memory for one in evidence.memory), key=lambda one: -one.peak_bytes)
    more = {"files": evidence.words, "hosts": tuple(hosts), "memory": tuple(memory), "notes": tuple(notes.lines())}
    found = job.model_copy(update=more)
    return found, evidence


def _with_clocks(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a low clock as the reason of the slow rank on the same device of the same host."""
    clocks = [one for one in findings if one.cause == "throttling" and not one.ranks]
    result = []
    for one in findings:
        is_slow = one.cause in ("slow device", "throttling") and one.ranks and one.hosts and one.device
        reason = next((clock for clock in clocks if is_slow and _is_of(clock, one)), None)
        if reason is not None:
            clocks.remove(reason)
            words = f"{one.words}; {reason.words.rpartition(':')[0]}"
            one = one.model_copy(update={"cause": "throttling", "words": words})
        result.append(one)
    return [one for one in result if one.ranks or one.cause != "throttling" or one in clocks]


def _is_of(clock: Finding, rank: Finding) -> bool:
    """Whether samples are of a rank's device. The name of their file may have more words than that of the host."""
    return clock.device == rank.device and rank.hosts[0] in clock.hosts[0]


def _ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by loss, faults first. Of those that cost about the same, the ones that name a rank or host are first."""
    most = max((one.share for one in findings if one.is_fault), default=0.0)

    def place(one: Finding) -> tuple[bool, bool, float]:
        is_named = bool(one.ranks or one.hosts) and one.share > most / 2
        return not one.is_fault, not is_named, -one.share

    return tuple(sorted(findings, key=place))


def of_job(ranks: Sequence[TracedRank], logs: Sequence[JobLog], more: Iterable[Finding] = ()) -> Diagnosis:
    """The diagnosis of traces and logs. more: findings from other files."""
    findings, table, series = list(more), tuple[RankTimes, ...](), list[Iterations]()
    step_s = None
    if ranks:
        traced = diagnose_ranks(ranks)
        findings += traced.findings
        table = tuple(traced.ranks)
        step_s = float(np.median(traced.step_s))
        if len(traced.step_s) >= _SERIES:
            numbers = list(range(1, len(traced.step_s) + 1))
            steps = iterations.StepSeries("traces", "step", numbers, np.array(traced.step_s))
            series.append(steps.record())
            # where a rank is named, it is why steps differ; a log has more steps
            named = any(one.ranks for one in traced.findings)
            findings += [] if named or logs else iterations.findings(steps)
    jobs = by_job(logs)
    findings += diagnose_logs(jobs)
    for log, _ in jobs:
        steps = iterations.series_of(log)
        series.append(steps.record())
        findings += iterations.findings(steps)
        if not steps.is_relative:
            step_s = float(np.median(steps.values))
    return Diagnosis(files=(), findings=_ordered(_with_clocks(findings)), step_s=step_s, ranks=table, iterations=tuple(series))
