"""Tables of measured runs: a CSV file whose rows change fields of a scenario, or one with the columns of published runs."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.simulator.common.errors import InputError, ScaleproofError, UnitError, printable
from scaleproof.simulator.common.units import parse_bytes, parse_count, parse_time_s
from scaleproof.simulator.published.tables import Cells, opened
from scaleproof.simulator.published.training_runs import row_scenario
from scaleproof.simulator.scenario.fields import field_named
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting import logged_runs
from scaleproof.validator.fitting.observed_run import ObservedRun, checked_step_s, run_scenario

# Columns that identify a table of published runs.
_PUBLISHED: Final = frozenset({"layers", "hidden", "heads", "tp", "pp", "dp", "gpus", "cluster", "step_time_s"})
# Columns that say nothing about the configuration.
_IGNORED: Final = frozenset({"id", "name", "run", "note", "notes", "comment", "date", "source", "host"})
_LOG: Final = "log"
_GIB: Final = 2.0**30


class _Measure(NamedTuple):
    """A column with a measurement. read: its number from text. seconds: of a step, from that number and the scenario."""

    read: Callable[[str], float]
    seconds: Callable[[float, Scenario], float]


def _plain(text: str) -> float:
    """A number without a unit. Raises UnitError."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise UnitError(f"cannot read {text!r} as a number without a unit") from None


def _rate(text: str) -> float:
    return parse_count(re.sub(r"\s*tokens?/s$", "", text.strip()).replace(",", ""))


def _tokens(scenario: Scenario) -> float:
    """Tokens of a step. Raises InputError for a model that reads none."""
    tokens = scenario.tokens_per_sample
    if tokens is None:
        raise InputError(f"tokens per second, but the model {scenario.model.name} reads none; give step_time")
    return scenario.total_samples * tokens


_TIMES: Final[Mapping[str, _Measure]] = {
    "step_time": _Measure(parse_time_s, lambda value, _: value),
    "step_time_s": _Measure(_plain, lambda value, _: value),
    "step_time_ms": _Measure(_plain, lambda value, _: value * 1e-3),
    "tokens_per_s": _Measure(_rate, lambda value, scenario: _tokens(scenario) / value),
    "tokens_per_s_per_gpu": _Measure(
        _rate, lambda value, scenario: _tokens(scenario) / (value * scenario.strategy.training_ranks)
    ),
    "samples_per_s": _Measure(_plain, lambda value, scenario: scenario.total_samples / value),
}
_MEMORIES: Final[Mapping[str, Callable[[str], float]]] = {
    "memory": parse_bytes,
    "memory_gib": lambda text: _plain(text) * _GIB,
}
_EXPECTED: Final = f"one of {', '.join(_TIMES)}, or {_LOG}"


def is_run_table(path: Path) -> bool:
    """Whether a CSV file has a column with step times or rates of whole runs; the history of one run has steps."""
    with opened(path, errors="replace") as file:
        names = {_normal(name) for name in next(csv.reader(file), [])}
    return not names & {"step", "_step", "iteration", "global_step"}


def read(path: Path, reference: str | None, overrides: Sequence[str], notes: ImportNotes) -> Iterator[ObservedRun]:
    """The runs of a table. Arguments and errors: see `observations.observed`."""
    columns, rows = _rows(path)
    if not rows:
        raise InputError(f"{path}: no rows below its columns; give at least one run")
    if set(columns) >= _PUBLISHED:
        yield from _published(path, rows, notes)
        return
    times = [name for name in columns if name in _TIMES or name == _LOG]
    if not times:
        raise InputError(f"{path}:1: no column has step times; give {_EXPECTED}")
    if reference is None:
        raise InputError(f"{path}: its rows change fields of a scenario; give it with --scenario")
    fields = {name: _field(path, name) for name in columns if not _is_measured(name)}
    for line, row in rows:
        yield _run(f"{path}:{line}", row, times, fields, reference, overrides, path.parent)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, Cells]]]:
    """Normalised column names, and the rows with their line numbers; empty lines are left out."""
    try:
        with opened(path) as file:
            reader = csv.reader(file)
            columns = [_normal(name) for name in next(reader, [])]
            rows = []
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    rows.append(
                        (reader.line_num, Cells(zip(columns, (printable(cell.strip()) for cell in cells), strict=False)))
                    )
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from None
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}:1: the column {twice!r} occurs twice; leave one out")
    return columns, rows


def _normal(name: str) -> str:
    """The name of a column in lower case with underscores."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower()).replace("/", "_per_")


def _is_measured(name: str) -> bool:
    return name in _TIMES or name in _MEMORIES or name in _IGNORED or name == _LOG


def _field(path: Path, name: str) -> str:
    """The scenario field that a column changes. Raises InputError."""
    field = field_named(name)
    if not field:
        raise InputError(
            f"{path}:1: the column {name!r} is no field of a scenario and no measurement; name it like a field, such as tp, "
            f"micro_batch_size or training.recompute, or remove it; measurements are {', '.join((*_TIMES, *_MEMORIES))}"
        )
    return field


def _run(
    place: str,
    row: Mapping[str, str],
    times: Sequence[str],
    fields: Mapping[str, str],
    reference: str,
    overrides: Sequence[str],
    folder: Path,
) -> ObservedRun:
    given = {field: row[name] for name, field in fields.items() if row.get(name)}
    try:
        scenario = run_scenario(reference, overrides, given)
        memory_bytes = next((read(row[name]) for name, read in _MEMORIES.items() if row.get(name)), None)
        step_s = _step_s(row, times, scenario, folder)
    except ScaleproofError as error:
        raise InputError(f"{place}: {error}") from None
    if memory_bytes is not None and not 0 < memory_bytes < math.inf:
        raise InputError(f"{place}: a memory of {memory_bytes:g} bytes; give one above zero, or leave the cell blank")
    return ObservedRun(place, scenario, checked_step_s(step_s, place), memory_bytes)


def _step_s(row: Mapping[str, str], times: Sequence[str], scenario: Scenario, folder: Path) -> float:
    """Seconds of a step of a row. Raises InputError unless exactly one column has it."""
    given = [name for name in times if row.get(name)]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "no step time"
        raise InputError(f"{problem}; give {_EXPECTED}, and leave the others blank")
    if given[0] == _LOG:
        return logged_runs.step_s(folder / row[_LOG], scenario, ImportNotes())
    measure = _TIMES[given[0]]
    try:
        value = measure.read(row[given[0]])
    except UnitError as error:
        raise InputError(f"{given[0]}: {error}") from None
    if not 0 < value < math.inf:
        raise InputError(f"{given[0]} is {row[given[0]]}; give a number above zero")
    return measure.seconds(value, scenario)


def _published(path: Path, rows: Sequence[tuple[int, Cells]], notes: ImportNotes) -> Iterator[ObservedRun]:
    """Runs of a table with the columns of published runs; those that failed are left out, with a note."""
    for line, row in rows:
        place = f"{path}:{line}"
        # columns were put into lower case
        cells = Cells({**row, "memory_GiB": row["memory_gib"]})
        if not cells["step_time_s"]:
            notes.add(
                f"{place}: no step time ({cells['fits'] or 'not stated'}); the row is left out", "rows without a step time"
            )
            continue
        try:
            scenario = row_scenario(cells).scenario
            step_s = _plain(cells["step_time_s"])
            memory_bytes = _plain(cells["memory_GiB"]) * _GIB if cells["memory_GiB"] else None
        except ScaleproofError as error:
            raise InputError(f"{place}: {error}") from None
        yield ObservedRun(place, scenario, checked_step_s(step_s, place), memory_bytes)
