"""Constants of frameworks, found on a few named rows of published training runs, and the error that is left on these.

How much longer kernels take than modelled, the same of the host's work, and what a microbatch takes beside: by least squares
of relative errors, of which those beyond a bound count less. Few rows tell of kernels alone.

Run: python benchmarks/frameworks.py
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator import library
from validator.framework_constants import CALIBRATIONS
from validator.frameworks import Constants, framework_of
from validator.published_transformer_training import row_step_s

Values = NDArray[np.float64]

# Rows below which kernels alone are fitted, and the relative error beyond which one counts less.
_FEW = 10
_ROBUST = 0.05
# Constants that rows do not tell stay where they start: a relative error of the bound counts as much as these differences.
_LOOSE = np.array([0.25, 1.0, 5.0])
_LOWEST = np.array([0.5, 0.2, 0.0])
_STEP = np.array([0.01, 0.02, 1.0])
_START = np.array([1.0, 1.0, 0.0])


def constants_of(values: Values) -> Constants:
    """The last in milliseconds."""
    kernels, host, microbatch_ms = (round(float(value), 3) for value in values)
    return Constants(kernels, host, microbatch_ms * 1e-3)


def errors(rows: list[Mapping[str, str]], values: Values) -> Values:
    """Relative errors of all rows, in logarithms."""
    constants = constants_of(values)
    steps_s = [row_step_s(row, framework_of(row["software"]).with_constants(constants)) for row in rows]
    return np.log(steps_s) - np.log([float(row["step_time_s"]) for row in rows])


def fitted(residuals: Callable[[Values], Values], free: int, rounds: int = 8) -> Values:
    """Gauss and Newton's steps in the first `free` values, with weights of Huber."""
    values = _START.copy()
    for _ in range(rounds):
        now = residuals(values)
        columns = []
        for index in range(free):
            moved = values.copy()
            moved[index] += _STEP[index]
            columns.append((residuals(moved) - now) / (moved[index] - values[index]))
        weights = np.sqrt(np.minimum(1.0, _ROBUST / np.maximum(np.abs(now), 1e-9)))
        held = np.diag(_ROBUST / _LOOSE[:free])
        slopes = np.concatenate([np.stack(columns, axis=1) * weights[:, None], held])
        away = np.concatenate([now * weights, held @ (values - _START)[:free]])
        values[:free] += least(slopes, away, (values - _LOWEST)[:free])
    return values


def least(slopes: Values, away: Values, room: Values) -> Values:
    """The step that makes `away` least by its slopes, none down by more than its room: what would be is held there."""
    held = np.zeros(len(room), dtype=bool)
    while True:
        step = np.where(held, -room, 0.0)
        step[~held] = np.linalg.lstsq(slopes[:, ~held], -(away + slopes @ step), rcond=None)[0]
        beyond = ~held & (step < -room)
        if not beyond.any():
            return step
        held |= beyond


def main() -> None:
    """Prints what was fitted for each family, and the error on its rows before and after."""
    with (library.ROOT / "published" / "transformer_training.csv").open(newline="", encoding="utf-8") as file:
        table = {row["id"]: row for row in csv.DictReader(file)}
    for family, calibration in CALIBRATIONS.items():
        rows: list[Mapping[str, str]] = [table[name] for name in calibration.rows]
        values = fitted(partial(errors, rows), 1 if len(rows) < _FEW else 3)
        before, after = (np.abs(errors(rows, at)).mean() for at in (_START, values))
        print(f"{family}: {constants_of(values)}, error {before:.1%} before, {after:.1%} after")


if __name__ == "__main__":
    main()
