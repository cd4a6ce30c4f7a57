"""Tables of metrics, as W&B and TensorBoard export them: the history of a run (CSV, or JSON lines), or the lines of a chart."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_number
from scaleproof.validator.reconciliation.jobs.log_formats import TIMES, Quantity

# Columns by quantity, and their factor to SI units: names of torchtitan, Megatron-LM, NeMo and transformers.
_PATTERNS: Final[Sequence[tuple[Quantity, str, float]]] = (
    ("clock_s", r"_timestamp|wall time", 1.0),
    ("iteration", r"_?step|(?:trainer|train)/global_step|global_step|iteration", 1.0),
    ("step_s", r"train_step_timing in s|iteration[-_ ]time|time_metrics/end_to_end\(s\)|step[-_ ]time(?: ?\(s\))?", 1.0),
    ("step_s", r"(?:elapsed time per iteration|iteration[-_ ]time|step[-_ ]time) ?\(ms\)", 1e-3),
    ("tokens_per_s_per_gpu", r"throughput\(tps\)|tps|tokens_per_sec(?:ond)?_per_(?:gpu|device)", 1.0),
    ("tokens_per_s", r"tokens_per_sec(?:ond)?|train/train_tokens_per_second", 1.0),
    ("samples_per_s", r"(?:train/)?train_samples_per_second|samples[_/]?(?:per_)?sec(?:ond)?", 1.0),
    ("steps_per_s", r"(?:train/)?train_steps_per_second", 1.0),
    ("flops_per_s_per_gpu", r"tflops|tflops_per_gpu|throughput(?:/tflops)?|throughput per gpu \(tflop/s/gpu\)", 1e12),
    ("loss", r"(?:train/)?loss|lm[ _-]loss(?: training)?|reduced_train_loss|loss_metrics/global_avg_loss", 1.0),
    ("memory_bytes", r"memory/max_(?:active|reserved)\(gib\)", 2.0**30),
    ("retries", r"memory/num_alloc_retries", 1.0),
)
_COLUMNS: Final = [(quantity, re.compile(f"^(?:{pattern})$", re.I), factor) for quantity, pattern, factor in _PATTERNS]
# Columns of wall-clock seconds, from which step times follow if no column has them.
_CLOCKS: Final = ("_runtime", "_timestamp", "Relative Time (Process)", "Wall time")
# Clocks that began before count from the start of the run.
_1971_S: Final = 3.2e7
_LONGEST_HEAD: Final = 100_000
_EXPECTED: Final = "a CSV file that W&B exports, with a step time or a throughput"


def is_table(text: str) -> bool:
    """Whether a text is a table with a column of steps."""
    head = rows(text.lstrip()[:_LONGEST_HEAD].partition("\n")[0])[:1]
    return any(_quantity(_metric(name)) == ("iteration", 1.0) for row in head if len(row) > 1 for name in row)


def rows(text: str) -> list[list[str]]:
    """Rows of a table, whose first has the names; empty if the text is not a table."""
    if text.lstrip().startswith("{"):
        return _of_mappings(text)
    try:
        return list(csv.reader(text.splitlines()))
    except csv.Error:
        return []


def _of_mappings(text: str) -> list[list[str]]:
    """Rows of lines of JSON, as `run.history()` and the history of W&B write them."""
    try:
        mappings = [json.loads(line) for line in text.splitlines() if line.strip()]
        names = list(dict.fromkeys(name for one in mappings for name in one))
        return [names, *([str(one.get(name, "")) for name in names] for one in mappings)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def read(path: Path, rows: Sequence[Sequence[str]], notes: ImportNotes) -> list[Mapping[Quantity, float]]:
    """The rows that have a time. Raises InputError without such rows, or if the table has several runs."""
    used = _used_columns(path, rows[0] if rows else [])
    records: list[Mapping[Quantity, float]] = []
    for row in rows[1:]:
        values = ((quantity, as_number(row[at]), factor) for at, quantity, factor in used if at < len(row))
        records.append({quantity: value * factor for quantity, value, factor in values if value is not None})
    times = {quantity for _, quantity, _ in used}.intersection(TIMES)
    if not times:
        records = _by_clock(rows, used)
        times = {"step_s"}
        if records:
            notes.add(f"{path}: no column has step times; they follow from the clock between logged steps")
    records = [record for record in records if any(record.get(name, 0.0) > 0 for name in times)]
    # the column counts from the start of the run
    totals = [0.0, *(record.get("retries", 0.0) for record in records)]
    records = [{**one, "retries": max(0.0, new - old)} for one, old, new in zip(records, totals, totals[1:], strict=False)]
    if not records:
        raise InputError(f"{path}: no row has the time of a step; expected {_EXPECTED}")
    return records


def _used_columns(path: Path, head: Sequence[str]) -> list[tuple[int, Quantity, float]]:
    """Columns by position. Raises InputError if one quantity has columns of several runs."""
    used: dict[Quantity, tuple[int, float]] = {}
    runs: dict[Quantity, set[str]] = {}
    for at, name in enumerate(head):
        found = None if name.endswith(("__MIN", "__MAX")) else _quantity(_metric(name))
        if found is None:
            continue
        quantity, factor = found
        runs.setdefault(quantity, set()).add(name.rpartition(" - ")[0])
        used.setdefault(quantity, (at, factor))
    several = next((sorted(own) for quantity, own in runs.items() if len(own) > 1 and quantity != "iteration"), None)
    if several is not None:
        raise InputError(f"{path}: columns of several runs ({', '.join(several)}); export one run")
    return [(at, quantity, factor) for quantity, (at, factor) in used.items()]


def _metric(column: str) -> str:
    """Name of a metric; columns of charts are called "RUN - METRIC"."""
    return column.rpartition(" - ")[2].strip()


def _quantity(metric: str) -> tuple[Quantity, float] | None:
    return next(((quantity, factor) for quantity, pattern, factor in _COLUMNS if pattern.match(metric)), None)


def _by_clock(rows: Sequence[Sequence[str]], used: Sequence[tuple[int, Quantity, float]]) -> list[Mapping[Quantity, float]]:
    """Records with step times from the clock between rows."""
    head = rows[0] if rows else []
    clock = next((head.index(name) for name in _CLOCKS if name in head), None)
    steps = next((at for at, quantity, _ in used if quantity == "iteration"), None)
    if clock is None or steps is None:
        return []
    points = [(as_number(row[steps]), as_number(row[clock])) for row in rows[1:] if max(steps, clock) < len(row)]
    known = [(step, seconds) for step, seconds in points if step is not None and seconds is not None]
    records: list[Mapping[Quantity, float]] = []
    for (before, before_s), (step, seconds) in pairwise(known):
        if step > before:
            at: Mapping[Quantity, float] = {"clock_s": seconds} if seconds > _1971_S else {}
            records.append({"iteration": step, "step_s": (seconds - before_s) / (step - before), **at})
    return records
