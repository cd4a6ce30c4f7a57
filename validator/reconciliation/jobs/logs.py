"""Logs of training software: iterations with their times, and what the log reports of the job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes, read_text
from scaleproof.validator.reconciliation.jobs import metrics_csv
from scaleproof.validator.reconciliation.jobs.log_formats import FORMATS, TIMES, Fact, LogFormat, Quantity

# Format of tables of metrics, for `--log-format`.
CSV: Final = "wandb-csv"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

LogRecord = Mapping[Quantity, float]


@dataclass(frozen=True)
class ReportedFact:
    """A fact of the job. place: "FILE:LINE"."""

    value: int
    place: str


@dataclass
class JobLog:
    """Log of a job. software: that wrote it. records: of iterations, in the log's order; each has a time. facts: the last value
    of each. memory_bytes: the most that lines without times report of a GPU, 0 without such lines."""

    path: Path
    software: str
    records: list[LogRecord] = field(default_factory=list)
    facts: dict[Fact, ReportedFact] = field(default_factory=dict)
    memory_bytes: float = 0.0


def names() -> list[str]:
    """Names of all formats, for `--log-format`."""
    return [*(one.key for one in FORMATS), CSV]


def read(path: Path, format_name: str | None, notes: ImportNotes) -> JobLog:
    """Reads a log. format_name: one of `names()`; found by its lines if None. Raises InputError if no line reports a time."""
    text = _COLOUR.sub("", read_text(path, "a log of training software"))
    if format_name == CSV or (format_name is None and metrics_csv.is_table(text)):
        return JobLog(path, "W&B", metrics_csv.read(path, text, notes))
    lines = re.split(r"[\r\n]", text)
    formats = [one for one in FORMATS if format_name in (None, one.key)]
    found = [_parsed(path, lines, one) for one in formats]
    log = max(found, key=lambda one: len(one.records))
    if not log.records:
        raise InputError(f"{path}: no line reports the time of an iteration; expected {_expected(formats)}")
    return log


def _expected(formats: Sequence[LogFormat]) -> str:
    if len(formats) == 1:
        return f"lines such as {formats[0].sample.strip()!r}"
    named = ", ".join(one.name for one in formats)
    return f"a log of {named}, or a CSV file of W&B"


def _parsed(path: Path, lines: Sequence[str], one: LogFormat) -> JobLog:
    log = JobLog(path, one.name)
    factors: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{path}:{number}"
        if one.marks.search(line):
            values = ((name, read.read(line)) for name, read in one.fields.items())
            record: LogRecord = {name: value for name, value in values if value is not None}
            if any(record.get(name, 0.0) > 0 for name in TIMES):
                log.records.append(record)
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


def _product(factors: Iterable[int]) -> int:
    result = 1
    for factor in factors:
        result *= factor
    return result
