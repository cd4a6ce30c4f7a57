"""Rows that constants are fitted to, which are not scored: those of shipped frameworks, and those of calibrated scores.

`scenarios/published/calibrations.yaml` names the rows, as `python benchmarks/fit.py choose` chose them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import yaml

from scaleproof.proof.published import parallel_map
from scaleproof.simulator.published.tables import Row, folder, read_table
from scaleproof.simulator.published.training_runs import row_scenario
from scaleproof.validator.fitting.fitted_constants import Posterior, fitted
from scaleproof.validator.fitting.observed_run import ObservedRun

FILE: Final = folder() / "calibrations.yaml"
TABLE: Final = folder() / "transformer_training.csv"
# Given runs are small: at most this number of them, on at most this number of GPUs, and at most half of a set's rows.
MOST_RUNS: Final = 12
MOST_GPUS: Final = 16
# Columns whose values make layouts different.
_LAYOUT: Final = (
    "model", "gpu", "gpus", "precision", "tp", "pp", "dp", "cp", "ep", "zero_stage", "virtual_stages", "microbatch_seqs",
    "recompute", "sequence_parallel", "seq_len", "software",
)  # fmt: skip


class ShippedFit(NamedTuple):
    """Constants of a shipped framework, in words, and the ids of the rows of a table that they were fitted on."""

    table: str
    constants: str
    rows: tuple[str, ...]


@functools.cache
def shipped_fits(table: str) -> tuple[ShippedFit, ...]:
    """All shipped constants that were fitted on rows of a published table."""
    found = yaml.safe_load((folder() / "fitted.yaml").read_text(encoding="utf-8"))
    every = (ShippedFit(one["table"], one["constants"], tuple(one["rows"])) for one in found)
    return tuple(one for one in every if one.table == table)


class Calibration(NamedTuple):
    """sets: whose rows are predicted with the constants of this fit. rows: ids of the runs that are given."""

    sets: tuple[str, ...]
    rows: tuple[str, ...]


@functools.cache
def calibrations() -> tuple[Calibration, ...]:
    """All that ship."""
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(Calibration(tuple(one["sets"]), tuple(one["rows"])) for one in found)


def posteriors(sets: Iterable[str]) -> dict[tuple[str, str], Posterior]:
    """The posterior of each set that has a calibration, by its name and the GPUs of the given runs; fitted on all cores.

    Constants are those of a framework and a cluster, so that runs on one kind of GPU say nothing of a set's runs on another.
    """
    wanted = set(sets)
    needed = [one for one in calibrations() if wanted & set(one.sets)]
    found = parallel_map.each(_fitted, needed, least=2)
    gpus = {row["id"]: row["gpu"] for row in read_table(TABLE)[1]}
    return {
        (name, gpu): posterior
        for one, posterior in zip(needed, found, strict=True)
        for name in one.sets
        for gpu in {gpus[row] for row in one.rows}
    }


def _fitted(calibration: Calibration) -> Posterior:
    rows = {row["id"]: row for row in read_table(TABLE)[1]}
    return fitted([run_of(rows[name]) for name in calibration.rows])


def run_of(row: Row) -> ObservedRun:
    """A published row as a measured run of a step time; memory is scored with shipped constants."""
    return ObservedRun(row["id"], row_scenario(row).scenario, float(row["step_time_s"]))


def chosen(rows: Sequence[Row]) -> tuple[str, ...]:
    """Ids of the rows of a set that are given: those that cover the most pairs of values of columns, one after another.

    Rows with equal coverage are taken in the order of their ids. Measured values play no part.
    """
    small = sorted((row for row in rows if row["step_time_s"] and int(row["gpus"]) <= MOST_GPUS), key=lambda row: row["id"])
    pairs = {row["id"]: _pairs(row) for row in small}
    covered: set[object] = set()
    names: list[str] = []
    scored = sum(bool(row["step_time_s"]) for row in rows)
    while pairs and len(names) < min(MOST_RUNS, scored // 2):
        name = max(pairs, key=lambda one: len(pairs[one] - covered))
        covered |= pairs.pop(name)
        names.append(name)
    return tuple(sorted(names))


def _pairs(row: Mapping[str, str]) -> set[object]:
    """Values of columns, and of pairs of columns."""
    values = [(column, row[column]) for column in _LAYOUT]
    return {*values, *itertools.combinations(values, 2)}
