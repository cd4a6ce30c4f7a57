"""Others' measurements against our predictions: the score of a table.

Every row is scored, or skipped for a reason that is counted; a blank that had to be assumed is counted by its column. What a
table is shows in its columns: `TABLES` says which module predicts which.
"""

from __future__ import annotations

import csv
import functools
import importlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.errors import InputError, NotFoundError
from validator import parallel

Row = Mapping[str, str]

# Of many rows' intervals: what brings less of the deviation than this is left out, which narrows none by more than a twentieth.
COARSE: Final = 0.3


@dataclass(frozen=True)
class Prediction:
    """One row: the set it counts in, and either both values or why it is skipped.

    inputs: what tells rows apart that should measure the same. pairs: rows that share it are compared for their order.
    interval: where the measured value is predicted to be with a probability of 90 %, where that is told.
    """

    set_name: str
    predicted: float = math.nan
    measured: float = math.nan
    skipped: str = ""
    assumed: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed, as a fraction of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class SetScore:
    """Errors are absolute, as fractions of what was measured; coverage90: share of rows whose measured value lies in the
    predicted 90 % interval. None where there is nothing to take them from."""

    rows: int
    scored: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    worst: float | None = None
    order_right: float | None = None
    floor: float | None = None
    coverage90: float | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    assumed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A table's score by set; calibration: the rows that constants were fitted on, which are left out of it."""

    table: str
    sets: Mapping[str, SetScore]
    calibration: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        return {"table": self.table, "sets": {name: dict(vars(score)) for name, score in self.sets.items()}}


@dataclass(frozen=True)
class Table:
    """A kind of table: the columns that tell it, and the module whose `predict` and `CALIBRATION` it takes.

    `predict` gives a row's prediction, or one for each measurement that the row holds; `predict_among` of a row and all rows,
    where rows are predicted from others. A module may also have `predict_calibrated` and `CALIBRATED`, for constants that are
    fitted on request.
    """

    name: str
    columns: frozenset[str]
    module: str


TABLES: Final = (
    Table(
        "collectives",
        frozenset({"collective", "gpu", "n_gpus", "size_bytes", "instance_or_system"}),
        "validator.published_collectives",
    ),
    Table(
        "transformer_training",
        frozenset({"layers", "hidden", "tp", "pp", "dp", "step_time_s"}),
        "validator.published_transformer_training",
    ),
    Table(
        "data_parallel_scaling",
        frozenset({"model", "method", "gpus", "servers", "samples_per_s"}),
        "validator.published_data_parallel_scaling",
    ),
    Table(
        "pipeline_schedules",
        frozenset({"schedule", "stages", "microbatches", "step_time_s"}),
        "validator.published_pipeline_schedules",
    ),
    Table(
        "layer_times",
        frozenset({"recompute", "tp", "forward_ms", "backward_ms"}),
        "validator.published_layer_times",
    ),
)


def score(path: Path, calibrated: bool = False) -> Score:
    """The score of a table of any kind that `TABLES` can predict.

    calibrated: with constants that were fitted on named rows, which are left out. Raises InputError when it is none of them, or
    has no such constants.
    """
    columns, rows = _read(path)
    table = next((table for table in TABLES if table.columns <= set(columns)), None)
    if table is None:
        raise InputError(f"{path}: not a table that can be scored; it needs the columns of one of {_known()}")
    module = importlib.import_module(table.module)
    if calibrated and not hasattr(module, "predict_calibrated"):
        raise InputError(f"{path}: nothing of {table.name} is fitted on request; leave --calibrated out")
    predict: Callable[[Row], Prediction | Sequence[Prediction]]
    if hasattr(module, "predict_among"):
        predict = functools.partial(module.predict_among, rows=rows)
    else:
        predict = module.predict_calibrated if calibrated else module.predict
    found = parallel.each(predict, rows)
    predictions = (one for each in found for one in ([each] if isinstance(each, Prediction) else each))
    return Score(table.name, summarise(predictions), module.CALIBRATED if calibrated else module.CALIBRATION)


def _known() -> str:
    return ", ".join(table.name for table in TABLES)


def _read(path: Path) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Columns and rows of a CSV file; cells that a short row lacks are blank."""
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give the path of a CSV file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="")
            return reader.fieldnames or (), [{k: v.strip() for k, v in row.items() if k is not None} for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from None


def summarise(predictions: Iterable[Prediction]) -> dict[str, SetScore]:
    """Scores by set, in the order in which the sets appear."""
    sets: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        sets[prediction.set_name].append(prediction)
    return {name: _set_score(members) for name, members in sets.items()}


def _set_score(members: Sequence[Prediction]) -> SetScore:
    scored = [m for m in members if not m.skipped]
    skipped = dict(Counter(m.skipped for m in members if m.skipped))
    if not scored:
        return SetScore(len(members), 0, skipped=skipped)
    errors = np.abs([m.error for m in scored])
    return SetScore(
        rows=len(members),
        scored=len(scored),
        mean=float(errors.mean()),
        median=float(np.median(errors)),
        p95=float(np.percentile(errors, 95)),
        worst=float(errors.max()),
        order_right=_order_right(scored),
        floor=_floor(scored),
        coverage90=_coverage(scored),
        skipped=skipped,
        assumed=dict(Counter(column for m in scored for column in m.assumed)),
    )


def _order_right(scored: Sequence[Prediction]) -> float | None:
    """Share of comparable pairs, of different measurements, that are predicted in the measured order."""
    groups: dict[tuple[str, ...], list[Prediction]] = defaultdict(list)
    for member in scored:
        groups[member.pairs].append(member)
    right = [
        (a.predicted < b.predicted) == (a.measured < b.measured) and a.predicted != b.predicted
        for group in groups.values()
        for a, b in combinations(group, 2)
        if a.measured != b.measured and a.inputs != b.inputs
    ]
    return sum(right) / len(right) if right else None


def _floor(scored: Sequence[Prediction]) -> float | None:
    """Median error of the best guess for rows with the same inputs, which is what all of them measured in the median."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for member in scored:
        groups[member.inputs].append(member.measured)
    repeated = [np.array(group) for group in groups.values() if len(group) > 1]
    if not repeated:
        return None
    return float(np.median(np.concatenate([np.abs(np.median(group) / group - 1) for group in repeated])))


def _coverage(scored: Sequence[Prediction]) -> float | None:
    """Share of rows that lie in their intervals, of those that have one."""
    inside = [member.interval[0] <= member.measured <= member.interval[1] for member in scored if member.interval]
    return sum(inside) / len(inside) if inside else None


def describe(result: Score) -> str:
    """The score as one table for people to read."""
    width = max([len("set"), *map(len, result.sets)])
    errors = " ".join(f"{title:>7}" for title in ("mean", "median", "p95", "worst"))
    lines = [result.table, f"{'set':<{width}} {'rows':>5} {'scored':>6} {errors} {'order':>6} {'floor':>6} {'in 90%':>6}"]
    for name, each in result.sets.items():
        shares = [_percent(value, 7) for value in (each.mean, each.median, each.p95, each.worst)]
        shares += [_percent(value, 6) for value in (each.order_right, each.floor, each.coverage90)]
        lines.append(f"{name:<{width}} {each.rows:>5} {each.scored:>6} {' '.join(shares)}")
    for title, counts in (("skipped", _total(result, "skipped")), ("assumed", _total(result, "assumed"))):
        lines += [f"{title}: {', '.join(f'{what} ({n} rows)' for what, n in counts.items())}"] if counts else []
    lines += [f"constants fitted on, and left out: {subset}" for subset in result.calibration]
    return "\n".join(lines)


def _total(result: Score, name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in result.sets.values():
        total.update(getattr(each, name))
    return total


def _percent(value: float | None, width: int) -> str:
    return f"{'–' if value is None else f'{value:.1%}':>{width}}"
