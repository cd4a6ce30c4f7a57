"""Logs of training software: iterations with their times, and what the log reports of the job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes, read_text
from scaleproof.validator.reconciliation.jobs import metrics_csv, tensorboard
from scaleproof.validator.reconciliation.jobs.log_formats import (
    FORMATS,
    RETRIES,
    TIMER,
    TIMERS,
    TIMES,
    Fact,
    LogFormat,
    Quantity,
)

# Format of tables of metrics, for `--log-format`.
CSV: Final = "wandb-csv"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# Year, month, day, hour, minute and second, or month, day, year and so on.
_CLOCKS: Final = (
    re.compile(r"\b(?P<Y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"),
    re.compile(r"\b(?P<m>\d\d)/(?P<d>\d\d)/(?P<Y>\d{4}) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"),
)

LogRecord = Mapping[Quantity, float]


@dataclass(frozen=True)
class ReportedFact:
    """A fact of the job. place: "FILE:LINE"."""

    value: int
    place: str


@dataclass
class JobLog:
    """Log of a job. software: that wrote it. records: of iterations, in the log's order; each has a time. facts: the last value
    of each. memory_bytes: the most that lines without times report of a GPU, 0 without such lines. timers_s: seconds by timer
    and rank, each time that they are logged."""

    path: Path
    software: str
    records: list[LogRecord] = field(default_factory=list)
    facts: dict[Fact, ReportedFact] = field(default_factory=dict)
    memory_bytes: float = 0.0
    timers_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)


def names() -> list[str]:
    """Names of all formats, for `--log-format`."""
    return [*(one.key for one in FORMATS), CSV]


def read(path: Path, format_name: str | None, notes: ImportNotes) -> JobLog:
    """Reads a log. format_name: one of `names()`; found by its lines if None. Raises InputError if no line reports a time."""
    if tensorboard.is_file(path):
        return JobLog(path, "TensorBoard", metrics_csv.read(path, tensorboard.rows(path), notes))
    text = _COLOUR.sub("", read_text(path, "a log of training software"))
    if format_name == CSV or (format_name is None and metrics_csv.is_table(text)):
        return JobLog(path, "W&B", metrics_csv.read(path, metrics_csv.rows(text), notes))
    lines = re.split(r"[\r\n]", text)
    formats = [one for one in FORMATS if format_name in (None, one.key)]
    found = [_parsed(path, lines, one) for one in formats]
    log = max(found, key=lambda one: len(one.records))
    if not log.records:
        raise InputError(f"{path}: no line reports the time of an iteration; expected {_expected(formats)}")
    log.records = _with_retries(log.records, lines)
    log.timers_s = _timers_s(lines)
    return log


def _expected(formats: Sequence[LogFormat]) -> str:
    if len(formats) == 1:
        return f"lines such as {formats[0].sample.strip()!r}"
    named = ", ".join(one.name for one in formats)
    return f"a log of {named}, or a table of W&B or TensorBoard"


def _with_retries(records: Sequence[LogRecord], lines: Sequence[str]) -> list[LogRecord]:
    """Records with the allocator's retries since the record before."""
    found, total = dict[int, int](), 0
    for number, line in enumerate(lines, start=1):
        match = RETRIES.search(line) if "retries" in line or "flushes" in line else None
        if match is not None and match["new"]:
            found[number] = int(match["new"])
        elif match is not None:
            before, total = total, int(match["total"] or match["counted"])
            found[number] = max(0, total - before)
    if not found:
        return list(records)
    places = np.searchsorted([record["line"] for record in records], list(found))
    counts = np.bincount(places, list(found.values()), len(records) + 1)
    return [{**record, "retries": float(count)} for record, count in zip(records, counts, strict=False)]


def _timers_s(lines: Sequence[str]) -> dict[str, dict[int, list[float]]]:
    timers_s, own, is_inside = dict[str, dict[int, list[float]]](), dict[int, list[float]](), False
    for line in lines:
        match = TIMER.match(line) if is_inside else None
        is_inside = match is not None or TIMERS.match(line) is not None
        if match is not None and match["timer"]:
            own = timers_s.setdefault(match["timer"], {})
        elif match is not None:
            own.setdefault(int(match["rank"]), []).append(1e-3 * float(match["ms"]))
    return timers_s


def _parsed(path: Path, lines: Sequence[str], one: LogFormat) -> JobLog:
    log = JobLog(path, one.name)
    factors: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{path}:{number}"
        if one.marks.search(line):
            values = ((name, read.read(line)) for name, read in one.fields.items())
            record: LogRecord = {name: value for name, value in values if value is not None}
            if any(record.get(name, 0.0) > 0 for name in TIMES):
                log.records.append({**record, "line": float(number), **_clock(line)})
        if one.memory is not None:
            log.memory_bytes = max(log.memory_bytes, one.memory.read(line) or 0.0)
        for index, (fact, pattern) in enumerate(one.facts):
            match = pattern.search(line)
            if match is not None and fact == "gpus_of":
                factors[index] = int(match[1])
                log.facts["gpus"] = ReportedFact(_product(factors.values()), place)
            elif match is not None:
                log.facts[fact] = ReportedFact(int(match[1].replace(",", "")), place)
    longest = max((record.get("iterations", 0.0) for record in log.records), default=0.0)
    # bars of evaluations and downloads are shorter than that of training
    log.records = [record for record in log.records if record.get("iterations", longest) == longest]
    return log


def _clock(line: str) -> LogRecord:
    """When a line was written, in seconds since 1970 as if its time were UTC; empty without a time."""
    match = next((found for pattern in _CLOCKS if (found := pattern.search(line))), None)
    if match is None:
        return {}
    try:
        at = datetime(*(int(match[part]) for part in "YmdHMS"), tzinfo=UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return {}
    return {"clock_s": at.timestamp()}


def _product(factors: Iterable[int]) -> int:
    result = 1
    for factor in factors:
        result *= factor
    return result
