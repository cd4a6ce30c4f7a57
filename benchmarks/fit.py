"""What a few small runs teach about the rest of a set of published runs: the errors of `scaleproof fit`.

choose: writes the given rows of each set to scenarios/published/calibrations.yaml. one-shot: for each set of five rows or more,
with each single run of at most 16 GPUs given (at most 12 of them), the median absolute error of the rest, averaged over the
choice of the run; next to it the same with nothing given and with the rows of calibrations.yaml given. scale: with these rows
given, errors of the rest by number of GPUs. scaling: the same as one-shot for data-parallel runs, whose device is known by the
run on the fewest GPUs; with --table of another table of such runs.

Run: python benchmarks/fit.py [choose] [one-shot] [scale] [scaling] [--sets NAME ...] [--table FILE.csv]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from scaleproof.proof.published import data_parallel_scaling, parallel_map
from scaleproof.proof.published.calibrations import (
    FILE,
    MOST_GPUS,
    TABLE,
    calibrations,
    chosen,
    posteriors,
    run_of,
    shipped_fits,
)
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.tables import Row, find_table, read_table
from scaleproof.simulator.published.training_runs import row_scenario
from scaleproof.simulator.scenario.dump import written
from scaleproof.validator.fitting.fitted_constants import Posterior, fitted
from scaleproof.validator.fitting.observed_run import ObservedRun

Errors = NDArray[np.float64]

# Sets whose runs have the framework and the cluster of another set, which has small runs.
_SAME: Final = {"vtrain_multi": "vtrain_single"}
_FEWEST: Final = 5
_MOST_GIVEN: Final = 12
_MOST_SCALING: Final = 4
# Rows of a set whose errors are computed; of more, every second, third and so on.
_MOST_SCORED: Final = 60
_DIFFERENT: Final = 0.05
_BINS: Final = ((1, 16), (17, 31), (32, 64), (65, 256), (257, 1_000_000), (32, 1_000_000))
_HEAD: Final = """\
# Rows of transformer_training.csv that calibrated scores are given, and that they do not count: by set, at most 12 runs of at
# most 16 GPUs and at most half of the rows. Written by `python benchmarks/fit.py choose`, which covers as many pairs of values
# of the columns that describe a layout as it can, in the order of ids; measured times play no part. Sets without runs of at
# most 16 GPUs have none. vtrain_multi has the framework and the cluster of vtrain_single.
"""


class _Task(NamedTuple):
    """Rows to predict. given: ids of the rows that constants are fitted to; empty for shipped constants."""

    given: tuple[str, ...]
    scored: tuple[str, ...]


def rows_by_set() -> dict[str, list[Row]]:
    """Rows that have a step time, by set, without those that shipped constants were fitted to."""
    fitted_rows = {name for one in shipped_fits("transformer_training") for name in one.rows}
    sets: dict[str, list[Row]] = {}
    for row in read_table(TABLE)[1]:
        if row["step_time_s"] and row["id"] not in fitted_rows:
            sets.setdefault(row["source_set"], []).append(row)
    return sets


def choose() -> None:
    """Writes calibrations.yaml."""
    entries = []
    for name, rows in rows_by_set().items():
        if name not in _SAME and (names := chosen(rows)):
            entries.append({"sets": [name, *(own for own, other in _SAME.items() if other == name)], "rows": list(names)})
    write_atomically(FILE, (_HEAD + written(entries, width=120)).encode())  # type: ignore[arg-type]


def log_errors(scored: Sequence[Row], posterior: Posterior | None) -> Errors:
    """Natural logarithms of predicted over measured step times; NaN for rows that cannot be predicted."""
    found = []
    for row in scored:
        try:
            scenario = row_scenario(row).scenario
            step_s = timed(scenario if posterior is None else posterior.applied(scenario)).step_time_s
            found.append(np.log(step_s / float(row["step_time_s"])))
        except ScaleproofError:
            found.append(np.nan)
    return np.array(found)


def errors_of(task: _Task) -> Errors:
    """Logarithms of predicted over measured step times of a task's rows."""
    rows = {row["id"]: row for row in read_table(TABLE)[1]}
    posterior = fitted([run_of(rows[name]) for name in task.given]) if task.given else None
    return log_errors([rows[name] for name in task.scored], posterior)


def median_error(errors: Errors) -> float:
    """Median absolute relative error."""
    return float(np.nanmedian(np.abs(np.expm1(errors))))


def print_one_shot(sets: Mapping[str, Sequence[Row]]) -> None:
    """A table of the median errors of the rest of each set with nothing, one run and the chosen runs given."""
    calibrated = {name: one.rows for one in calibrations() for name in one.sets}
    print(f"{'set':<18}{'rows':>6}{'runs tried':>12}{'nothing':>9}{'one run':>9}{'worst run':>11}{'chosen':>9}{'runs':>6}")
    for name, rows in sets.items():
        small = [row["id"] for row in rows if int(row["gpus"]) <= MOST_GPUS]
        if len(rows) < _FEWEST or not small:
            continue
        single = small[:: -(-len(small) // _MOST_GIVEN)]
        given = [(), *((one,) for one in single), calibrated[name]]
        tasks = [_Task(names, _scored(rows, names)) for names in given]
        nothing, *ones, several = [median_error(errors) for errors in parallel_map.each(errors_of, tasks, least=2)]
        shares = f"{nothing:>9.1%}{np.mean(ones):>9.1%}{max(ones):>11.1%}{several:>9.1%}"
        print(f"{name:<18}{len(rows):>6}{len(single):>12}{shares}{len(calibrated[name]):>6}", flush=True)


def _scored(rows: Sequence[Row], given: Sequence[str]) -> tuple[str, ...]:
    rest = [row["id"] for row in rows if row["id"] not in given]
    return tuple(rest[:: -(-len(rest) // _MOST_SCORED)])


def print_scale(sets: Mapping[str, Sequence[Row]]) -> None:
    """A table of errors with the chosen runs given, before and after, by number of GPUs."""
    given = {name for one in calibrations() for name in one.rows}
    known = posteriors(sets)
    shares = f"{'median':>7}{'p90':>8}{'order':>7}"
    print(f"{'set':<18}{'GPUs':>12}{'rows':>6}   {shares}   {shares}   after")
    for name, rows in sets.items():
        rest = [row for row in rows if row["id"] not in given and (name, row["gpu"]) in known]
        if not rest:
            continue
        halves = [rest[start::2] for start in (0, 1)]
        tasks = [(half, posterior) for posterior in (None, known[name, rest[0]["gpu"]]) for half in halves]
        found = parallel_map.each(_errors, tasks, least=2)
        before, after = ({row["id"]: e for half, errors in pairs for row, e in zip(half, errors, strict=True)} for pairs in (
            zip(halves, found[:2], strict=True), zip(halves, found[2:], strict=True)
        ))  # fmt: skip
        for low, high in _BINS:
            own = [row for row in rest if low <= int(row["gpus"]) <= high]
            if own:
                shown = "   ".join(_shown(own, errors) for errors in (before, after))
                print(f"{name:<18}{f'{low}-{min(high, 9999)}':>12}{len(own):>6}   {shown}", flush=True)


def _errors(task: tuple[Sequence[Row], Posterior | None]) -> Errors:
    return log_errors(*task)


def _shown(rows: Sequence[Row], errors: Mapping[str, float]) -> str:
    """Median and 90th percentile of absolute errors, and the share of pairs of one model and GPU count in the right order."""
    found = np.abs(np.expm1([errors[row["id"]] for row in rows]))
    right = list(_ordered(rows, errors))
    order = f"{np.mean(right):>7.0%}" if right else f"{'–':>7}"
    return f"{np.nanmedian(found):>7.1%}{np.nanpercentile(found, 90):>8.1%}{order}"


def _ordered(rows: Sequence[Row], errors: Mapping[str, float]) -> Iterator[bool]:
    for a, b in itertools.combinations(rows, 2):
        measured = np.log(float(a["step_time_s"]) / float(b["step_time_s"]))
        if (a["model"], a["gpus"]) == (b["model"], b["gpus"]) and abs(measured) > np.log1p(_DIFFERENT):
            yield bool((measured + errors[a["id"]] - errors[b["id"]]) * measured > 0)


def print_scaling(table: Path, names: Sequence[str] | None) -> None:
    """A table of the median errors of the rest of each data-parallel set with nothing and with one run given."""
    rows = read_table(table)[1]
    print(f"{'set':<18}{'rows':>6}{'runs tried':>12}{'nothing':>9}{'one run':>9}{'worst run':>11}")
    for name in dict.fromkeys(row["source_set"] for row in rows):
        if not names or name in names:
            runs = list(_scaling_runs([row for row in rows if row["source_set"] == name]))
            single = [run for run in runs if run.scenario.strategy.ranks <= MOST_GPUS]
            if len(runs) >= _FEWEST and single:
                _print_scaling_set(name, runs, single[:: -(-len(single) // _MOST_SCALING)])


def _scaling_runs(rows: Sequence[Row]) -> Iterator[ObservedRun]:
    """The rows that a base predicts, as runs with their step times."""
    for row in rows:
        try:
            scenario = data_parallel_scaling.scenario_among(row, rows)
        except (ScaleproofError, ValidationError):
            continue
        if scenario is not None:
            yield ObservedRun(row["id"], scenario, scenario.total_samples / float(row["samples_per_s"]))


def _print_scaling_set(name: str, runs: Sequence[ObservedRun], single: Sequence[ObservedRun]) -> None:
    tasks = [(None, runs), *((one, [run for run in runs if run is not one]) for one in single)]
    nothing, *ones = [median_error(errors) for errors in parallel_map.each(_scaling_errors, tasks, least=2)]
    shares = f"{nothing:>9.1%}{np.mean(ones):>9.1%}{max(ones):>11.1%}"
    print(f"{name:<18}{len(runs):>6}{len(single):>12}{shares}", flush=True)


def _scaling_errors(task: tuple[ObservedRun | None, Sequence[ObservedRun]]) -> Errors:
    given, rest = task
    posterior = None if given is None else fitted([given])
    scenarios = (run.scenario if posterior is None else posterior.applied(run.scenario) for run in rest)
    return np.array([np.log(timed(one).step_time_s / run.step_time_s) for one, run in zip(scenarios, rest, strict=True)])


def main() -> None:
    """Does what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["choose", "one-shot", "scale", "scaling"])
    parser.add_argument("--table", type=Path, default=Path("data_parallel_scaling.csv"), help="of scaling")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="the sets of the tables (all)")
    options = parser.parse_args()
    what = options.what or ["one-shot", "scale"]
    sets = {name: rows for name, rows in rows_by_set().items() if not options.sets or name in options.sets}
    if "choose" in what:
        choose()
    if "one-shot" in what:
        print_one_shot(sets)
    if "scale" in what:
        print_scale(sets)
    if "scaling" in what:
        print_scaling(find_table(options.table), options.sets)


if __name__ == "__main__":
    main()
