"""Measured runs that constants are fitted to, from tables, results folders and logs, checked against each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.units import format_bytes, format_percent, format_time_s
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.validator import results
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting import logged_runs, run_table
from scaleproof.validator.fitting.constants import priors
from scaleproof.validator.fitting.observed_run import ObservedRun, checked_step_s

# Two measurements of one configuration differ by at most this multiple of `repeats` in 99 of 100 cases.
_REPEATS: Final = 2.576 * math.sqrt(2)
# Largest ratio of measured and predicted step time, or its inverse: minutes for seconds are 60 times, and published runs in a
# slow mode up to 40 times.
_FARTHEST: Final = 50.0
# Memory of a rank over its device's capacity that a run cannot have had; capacities are rounded.
_TOO_LARGE: Final = 1.1


def observed(
    places: Sequence[Path], reference: str | None, overrides: Sequence[str], notes: ImportNotes
) -> tuple[ObservedRun, ...]:
    """The runs in tables (.csv), results folders and logs.

    reference: the scenario whose fields a row of a table changes, and that a log ran; not needed for results folders and tables
    with the columns of scenarios/published/transformer_training.csv. Raises InputError for the first run that cannot be used,
    with its place, and for runs that contradict each other.
    """
    runs: list[ObservedRun] = []
    for place in places:
        if place.is_dir():
            runs += _in_folder(place)
        elif place.name.endswith((".csv", ".csv.gz")) and run_table.is_run_table(place):
            runs += run_table.read(place, reference, overrides, notes)
        else:
            runs.append(logged_runs.read(place, reference, overrides, notes))
    check_consistent(runs)
    for run in runs:
        check_plausible(run)
    return tuple(runs)


def check_consistent(runs: Sequence[ObservedRun]) -> None:
    """Raises InputError for two runs of the same configuration whose step times differ by more than the noise."""
    by_configuration: dict[str, list[ObservedRun]] = {}
    for run in runs:
        by_configuration.setdefault(dump(run.scenario.model_copy(update={"name": "", "description": ""})), []).append(run)
    most = math.exp(_REPEATS * priors().repeats)
    for same in by_configuration.values():
        for a, b in itertools.combinations(same, 2):
            ratio = max(a.step_time_s, b.step_time_s) / min(a.step_time_s, b.step_time_s)
            if ratio > most:
                times = f"{format_time_s(a.step_time_s)} and {format_time_s(b.step_time_s)} ({format_percent(ratio - 1)} more)"
                raise InputError(
                    f"{a.place} and {b.place}: the same configuration with steps of {times}; "
                    f"repeats differ by at most {format_percent(most - 1)}; remove one, or add the column that differs"
                )


def check_plausible(run: ObservedRun) -> None:
    """Raises InputError for a step time or a memory that is so far from what is possible that its unit must be another one."""
    try:
        predicted_s = timed(run.scenario).step_time_s
    except ScaleproofError as error:
        raise InputError(f"{run.place}: {error}") from None
    if not 1 / _FARTHEST < run.step_time_s / predicted_s < _FARTHEST:
        times = f"a step of {format_time_s(run.step_time_s)}, but {format_time_s(predicted_s)} are predicted"
        raise InputError(f"{run.place}: {times}; check its unit, and the model and batch of the scenario")
    capacity_bytes = run.scenario.cluster.device.capacity_bytes
    if run.memory_bytes is not None and run.memory_bytes > _TOO_LARGE * capacity_bytes:
        sizes = f"{format_bytes(run.memory_bytes)} on a device with {format_bytes(capacity_bytes)}"
        raise InputError(f"{run.place}: a memory of {sizes}; check its unit, and give that of one rank")


def _in_folder(folder: Path) -> list[ObservedRun]:
    """The complete runs below a results folder of `measure`. Raises InputError if it has none, or one cannot be read."""
    runs = []
    for kept in results.listed(folder):
        if kept.run is None:
            raise InputError(f"{kept.folder}: the run cannot be read: {kept.problem}; remove the folder, or measure it again")
        if "partial" in kept.run.provenance:
            continue
        file = kept.folder.parent / "scenario.yaml"
        try:
            scenario = load(file)
        except ScaleproofError as error:
            raise InputError(f"{kept.folder}: the scenario of the run cannot be read: {error}") from None
        memory_bytes = kept.run.memory_bytes_per_rank
        runs.append(
            ObservedRun(str(kept.folder), scenario, checked_step_s(kept.run.step_time_s, str(kept.folder)), memory_bytes)
        )
    if not runs:
        raise InputError(f"{folder}: no measured run; give a folder that measure or reconcile wrote with --out")
    return runs
