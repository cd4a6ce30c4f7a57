"""Constants of frameworks, fitted to named rows of published training runs, and what each mechanism of frameworks contributes.

Constants are factors on the modelled times of kernels and of the host, and a time per microbatch. They minimise squared
relative errors of step times, of which those beyond a bound count linearly. Rows fewer than ten fit the kernels' factor alone.

The second table is the mean absolute relative error of step times, by set, with all mechanisms, with each of them switched off,
with `ideal` and with the default framework in place of the row's. No constants are applied there.

Run: python benchmarks/frameworks.py [constants] [ablations]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.frameworks import ABLATIONS, shipped
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.published import Row, described, read_table
from scaleproof.simulator.scenario.published.calibrations import Constants, calibrations
from scaleproof.simulator.scenario.published.tables import folder
from scaleproof.validator.published import parallel_map
from scaleproof.validator.published.prediction import Options
from scaleproof.validator.published.transformer_training import scenario_of

Values = NDArray[np.float64]

# Rows below which the kernels' factor alone is fitted, and the relative error beyond which errors count linearly.
_FEW: Final = 10
_ROBUST: Final = 0.05
# Prior: a relative error of the bound counts as much as these differences from the start.
_LOOSE: Final = np.array([0.25, 1.0, 5.0])
_LOWEST: Final = np.array([0.5, 0.2, 0.0])
_STEP: Final = np.array([0.01, 0.02, 1.0])
_START: Final = np.array([1.0, 1.0, 0.0])
# Sets on which constants of frameworks were looked up before the rest was collected.
_OLDER: Final = (
    "korthikanti22", "megatron_sc21_t1", "vtrain_single", "vtrain_multi", "bigscience", "llm_foundry", "torchtitan", "nemo",
    "megatron_bridge", "simumax_b200", "mcore_h100_weak",
)  # fmt: skip
_DEFAULT: Final = "default framework"
_IDEAL: Final = "ideal"


def constants_of(values: Values) -> Constants:
    """Factors of kernels and host, and milliseconds per microbatch, as constants."""
    kernels, host, microbatch_ms = (round(float(value), 3) for value in values)
    return Constants(kernels, host, microbatch_ms * 1e-3)


def step_s(one: tuple[Row, Constants]) -> float:
    """Seconds of a row's step as `predict` has them, where the row's framework has these constants."""
    row, constants = one
    framework = described(row).scenario.framework
    return timed(described(row, constants.of(framework)).scenario).step_time_s


def errors(rows: Sequence[Row], values: Values) -> Values:
    """Logarithms of predicted over measured step times."""
    constants = constants_of(values)
    steps_s = parallel_map.each(step_s, [(row, constants) for row in rows])
    return np.log(steps_s) - np.log([float(row["step_time_s"]) for row in rows])


def fitted(residuals: Callable[[Values], Values], free: int, rounds: int = 8) -> Values:
    """Values after Gauss-Newton steps in the first `free` of them, with Huber weights."""
    values = _START.copy()
    for _ in range(rounds):
        now = residuals(values)
        columns = []
        for index in range(free):
            moved = values.copy()
            moved[index] += _STEP[index]
            columns.append((residuals(moved) - now) / (moved[index] - values[index]))
        weights = np.sqrt(np.minimum(1.0, _ROBUST / np.maximum(np.abs(now), 1e-9)))
        prior = np.diag(_ROBUST / _LOOSE[:free])
        slopes = np.concatenate([np.stack(columns, axis=1) * weights[:, None], prior])
        away = np.concatenate([now * weights, prior @ (values - _START)[:free]])
        values[:free] += least(slopes, away, (values - _LOWEST)[:free])
    return values


def least(slopes: Values, away: Values, room: Values) -> Values:
    """The step that minimises |away + slopes · step| with no entry below −room."""
    bound = np.zeros(len(room), dtype=bool)
    while True:
        step = np.where(bound, -room, 0.0)
        step[~bound] = np.linalg.lstsq(slopes[:, ~bound], -(away + slopes @ step), rcond=None)[0]
        beyond = ~bound & (step < -room)
        if not beyond.any():
            return step
        bound |= beyond


def print_constants(table: Mapping[str, Row]) -> None:
    """Fits each calibration of calibrations.yaml, and prints it as the `changes` of that file, with errors before and after."""
    for calibration in calibrations():
        rows = [table[name] for name in calibration.rows]
        values = fitted(partial(errors, rows), 1 if len(rows) < _FEW else len(_START))
        before, after = (np.abs(errors(rows, at)).mean() for at in (_START, values))
        print(f"{calibration.name}: {changes(constants_of(values))}, error {before:.1%} before, {after:.1%} after", flush=True)


def changes(constants: Constants) -> str:
    """Constants as calibrations.yaml has them: those that differ from none."""
    parts = [f"kernel_scale: {constants.kernel_scale:g}"]
    if constants.host_scale != 1:
        parts.append(f"host_scale: {constants.host_scale:g}")
    if constants.microbatch_s:
        parts.append(f"microbatch: {format_time_s(constants.microbatch_s)}")
    return f"{{{', '.join(parts)}}}"


def print_ablations(table: Mapping[str, Row]) -> None:
    """The mean error of each set with all mechanisms, without each of them, and with other frameworks; means of sets."""
    rows = [row for row in table.values() if row["step_time_s"]]
    names = {row["source_set"] for row in rows}
    older, newer = [name for name in _OLDER if name in names], sorted(names - set(_OLDER))
    columns = (*older, "older", *newer, "newer")
    width = max(map(len, columns))
    print(f"{'':<{width}} {' '.join(f'{name:>{width}}' for name in columns)}")
    for variant in ("all on", *ABLATIONS, _DEFAULT, _IDEAL):
        found = parallel_map.each(_set_error, [(row, variant) for row in rows])
        means = {name: float(np.nanmean([error for of, error in found if of == name])) for name in names}
        shown = [*(means[one] for one in older), mean(means[one] for one in older)]
        shown += [*(means[one] for one in newer), mean(means[one] for one in newer)]
        title = f"without {variant}" if variant in ABLATIONS else variant
        print(f"{title:<{width}} {' '.join(f'{100 * one:>{width}.2f}' for one in shown)}", flush=True)


def _set_error(one: tuple[Row, str]) -> tuple[str, float]:
    """The set of a row, and the absolute relative error of its step time; NaN where it cannot be predicted."""
    row, variant = one
    options = Options(ablate=(variant,) if variant in ABLATIONS else (), frameworks=variant != _DEFAULT)
    try:
        found = described(row, shipped(_IDEAL)) if variant == _IDEAL else scenario_of(row, options)
        assert not isinstance(found, str), "only calibrated scores leave rows out"
        return row["source_set"], abs(timed(found.scenario).step_time_s / float(row["step_time_s"]) - 1)
    except ScaleproofError:
        return row["source_set"], math.nan


def main() -> None:
    """Fits the calibrated constants, or prints the contribution of each mechanism, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["constants", "ablations"])
    what = parser.parse_args().what or ["constants", "ablations"]
    table = {row["id"]: row for row in read_table(folder() / "transformer_training.csv")[1]}
    if "constants" in what:
        print_constants(table)
    if "ablations" in what:
        print_ablations(table)


if __name__ == "__main__":
    main()
