"""Score of predictions against tables of published measurements.

Every row is scored, or skipped for a reason that is counted; assumed values of blank cells are counted by column. The kind of a
table follows from its columns; `TABLES` names the module that predicts each kind.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import io
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.proof.published import parallel_map
from scaleproof.proof.published.prediction import ROW_COLUMNS, Options, Prediction, Quantity
from scaleproof.proof.published.regret import regrets
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.frameworks import ABLATIONS
from scaleproof.simulator.published.tables import Row, csv_files, find_table, folder, opened, read_table

# Two rows are compared for their order if their measurements differ by more than this share.
_DIFFERENT: Final = 0.05
# Rows beyond this number of nodes have a total of their own, which tests extrapolation from small runs.
FEW_NODES: Final = 2


# What a score that leaves out the source of each row means, by table; in the others only intervals are fitted again.
_INTERVALS_FITTED: Final = ("sources left out: of intervals; other constants are those of the shipped files",)
_LEAVE_OUT_NOTES: Final[Mapping[str, tuple[str, ...]]] = {
    "collectives": ("sources left out: each row is predicted with constants fitted to rows of the other sources",),
    "gpu_kernels": ("sources left out: not done here; errors on GPUs left out of the fit: python benchmarks/kernels.py gpus",),
}


@dataclass(frozen=True)
class SetScore:
    """Absolute relative errors of a set. coverage90: share of rows whose measurement is in the 90 % prediction interval;
    width90: geometric mean of the intervals' upper ends over their lower ends. regret_mean, regret_worst: of the layouts that
    are predicted to be fastest (see `regrets`). Values are None without rows to compute them from."""

    rows: int
    scored: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    worst: float | None = None
    order_right: float | None = None
    floor: float | None = None
    coverage90: float | None = None
    width90: float | None = None
    regret_mean: float | None = None
    regret_worst: float | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    assumed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A table's score by set. calibration: rows on which constants were fitted, which are not scored. totals: for the speed of
    all rows, and of those on more than `FEW_NODES` nodes, if there are any. notes: on what the score means."""

    table: str
    sets: Mapping[str, SetScore]
    calibration: tuple[str, ...] = ()
    totals: Mapping[str, SetScore] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The score as data for JSON, with the scored rows."""
        rows = [prediction.plain() for prediction in self.predictions if not prediction.skipped]
        return {"table": self.table, "sets": _plain(self.sets), "totals": _plain(self.totals), "rows": rows}


@dataclass(frozen=True)
class Scores:
    """Scores of several tables, and their common totals."""

    tables: Sequence[Score]
    totals: Mapping[str, SetScore]

    @property
    def predictions(self) -> Sequence[Prediction]:
        """Predictions of all tables."""
        return [prediction for table in self.tables for prediction in table.predictions]

    def plain(self) -> dict[str, Any]:
        """The scores as data for JSON."""
        return {"tables": [table.plain() for table in self.tables], "totals": _plain(self.totals)}


def _plain(scores: Mapping[str, SetScore]) -> dict[str, dict[str, Any]]:
    return {name: dict(vars(score)) for name, score in scores.items()}


@dataclass(frozen=True)
class Table:
    """A kind of table: the columns that identify it, and the module with its `predict` and `CALIBRATION`.

    `predict` returns a row's prediction, or one per measurement in the row; `predict_among`, of a row and all rows, if rows are
    predicted from others; `predict_table`, of a path, those of all rows; `leaving_out` returns `predict` with constants that
    were fitted without the source of each row, where constants are fitted. has_constants: whether constants can be fitted, so
    that the module has `CALIBRATED` and `calibrated`, which returns `predict` with constants fitted to given rows.
    of: quantity of the totals.
    """

    name: str
    columns: frozenset[str]
    module: str
    has_constants: bool = False
    of: Quantity = "speed"


TABLES: Final = (
    Table(
        "collectives",
        frozenset({"collective", "gpu", "n_gpus", "size_bytes", "instance_or_system"}),
        "scaleproof.proof.published.collectives",
    ),
    Table(
        "transformer_training",
        frozenset({"layers", "hidden", "tp", "pp", "dp", "step_time_s"}),
        "scaleproof.proof.published.transformer_training",
        has_constants=True,
    ),
    Table(
        "data_parallel_scaling",
        frozenset({"model", "method", "gpus", "servers", "samples_per_s"}),
        "scaleproof.proof.published.data_parallel_scaling",
    ),
    Table(
        "pipeline_schedules",
        frozenset({"schedule", "stages", "microbatches", "step_time_s"}),
        "scaleproof.proof.published.pipeline_schedules",
    ),
    Table(
        "layer_times",
        frozenset({"recompute", "tp", "forward_ms", "backward_ms"}),
        "scaleproof.proof.published.layer_times",
    ),
    Table(
        "gpu_kernels",
        frozenset({"gpu", "kind", "precision", "latency_us"}),
        "scaleproof.proof.published.gpu_kernels",
        of="kernel",
    ),
    Table(
        "fine_tuning",
        frozenset({"method", "rank", "targets", "base_precision", "step_is", "memory_kind"}),
        "scaleproof.proof.published.fine_tuning",
    ),
    Table(
        "recommenders",
        frozenset({"model", "tables", "embedding_GiB", "batch_total", "gpus", "sharding", "placement"}),
        "scaleproof.proof.published.recommenders",
    ),
    Table(
        "vision",
        frozenset({"model", "image_size", "gpu", "batch_per_gpu", "grad_accum", "samples_per_s", "measured_as"}),
        "scaleproof.proof.published.vision",
    ),
    Table(
        "step_time_quantiles",
        frozenset({"benchmark", "accelerators", "nodes", "global_batch", "steps", "p50", "p95"}),
        "scaleproof.proof.published.step_time_quantiles",
        of="spread",
    ),
)


class _LoadedTable(NamedTuple):
    """A table to score: its kind, and the functions that together predict its rows. calibration, notes: as in `Score`."""

    table: Table
    tasks: Sequence[Callable[[], Sequence[Prediction]]]
    calibration: tuple[str, ...]
    notes: tuple[str, ...] = ()


def score(path: Path, options: Options = Options()) -> Score:  # noqa: B008 (it never changes)
    """Scores a table of any kind in `TABLES`.

    Raises InputError if it is of no such kind, has no rows, or does not take the options.
    """
    return score_all([path], options).tables[0]


def score_all(paths: Iterable[Path], options: Options = Options()) -> Scores:  # noqa: B008 (it never changes)
    """Scores several tables on all cores; arguments and errors as for `score`."""
    for mechanism in options.ablate:
        if mechanism not in ABLATIONS:
            raise InputError(f"--ablate {mechanism}: no such mechanism; give one of {', '.join(ABLATIONS)}")
    tables = [_load(path, options) for path in paths]
    predicted = iter(parallel_map.each(_done, [task for table in tables for task in table.tasks]))
    of_tables = [[prediction for _ in table.tasks for prediction in next(predicted)] for table in tables]
    scores = [
        Score(
            table.table.name, summarise(predictions), table.calibration, totals(predictions, table.table.of), predictions,
            table.notes,
        )
        for table, predictions in zip(tables, of_tables, strict=True)
    ]  # fmt: skip
    return Scores(scores, totals(list(itertools.chain.from_iterable(of_tables))))


def write_rows(predictions: Iterable[Prediction], path: Path) -> None:
    """Writes one line of CSV per scored row, atomically. Raises OSError if the file cannot be written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(prediction.plain() for prediction in predictions if not prediction.skipped)
    write_atomically(path, text.getvalue().encode())


def tables_at(places: Sequence[Path]) -> list[Path]:
    """Paths of the tables at these places, in order: files, names of shipped tables, and in folders the CSV files of a known
    kind; the shipped tables if no place is given. Raises InputError for a folder without tables."""
    tables: list[Path] = []
    for place in places or [folder()]:
        inside = [path for path in csv_files(place) if _kind(_columns(path))] if place.is_dir() else [find_table(place)]
        if not inside:
            raise InputError(f"{place}: no table that can be scored; it needs CSV files with the columns of one of {_known()}")
        tables += inside
    return tables


def _columns(path: Path) -> Sequence[str]:
    """Column names in the first line of a CSV file."""
    with opened(path, errors="replace") as file, contextlib.suppress(csv.Error):
        return next(csv.reader(file), [])
    return []


def _load(path: Path, options: Options) -> _LoadedTable:
    columns = _columns(path)
    table = _kind(columns)
    if table is None:
        near = max(TABLES, key=lambda known: len(known.columns & set(columns)) / len(known.columns))
        missing = ", ".join(sorted(near.columns - set(columns)))
        hint = f"to be one of {near.name} it lacks {missing}; the kinds are {_known()}"
        raise InputError(f"{path}: not a table that can be scored: {hint}")
    module = importlib.import_module(table.module)
    if options.calibrated and not table.has_constants:
        raise InputError(f"{path}: {table.name} has no constants to fit; remove --calibrated")
    calibration = module.CALIBRATED if options.calibrated else module.CALIBRATION
    notes = _LEAVE_OUT_NOTES.get(table.name, _INTERVALS_FITTED) if options.leave_out else ()
    if hasattr(module, "predict_table"):
        return _LoadedTable(table, [functools.partial(module.predict_table, path)], calibration, (*module.NOTES, *notes))
    _, rows = read_table(path)
    if not rows:
        raise InputError(f"{path}: no rows below its columns; give at least one")
    if options.calibrated:
        predict = module.calibrated(options, rows)
    elif options.leave_out and hasattr(module, "leaving_out"):
        predict = module.leaving_out(options)
    elif hasattr(module, "predict_among"):
        predict = functools.partial(module.predict_among, rows=rows, options=options)
    else:
        predict = functools.partial(module.predict, options=options)
    return _LoadedTable(table, [functools.partial(_predicted, predict, row) for row in rows], calibration, notes)


def _done(task: Callable[[], Sequence[Prediction]]) -> Sequence[Prediction]:
    return task()


def _predicted(predict: Callable[[Row], Prediction | Sequence[Prediction]], row: Row) -> Sequence[Prediction]:
    result = predict(row)
    return [_checked(replace(one, id=row["id"])) for one in ([result] if isinstance(result, Prediction) else result)]


def _checked(prediction: Prediction) -> Prediction:
    """The prediction; skipped if its measured value cannot be compared."""
    if prediction.skipped or 0 < prediction.measured < math.inf:
        return prediction
    return replace(prediction, skipped="the measured value is not a number above zero")


def _kind(columns: Sequence[str]) -> Table | None:
    return next((table for table in TABLES if table.columns <= set(columns)), None)


def _known() -> str:
    return ", ".join(table.name for table in TABLES)


def summarise(predictions: Iterable[Prediction]) -> dict[str, SetScore]:
    """Scores by set, in the order in which the sets appear."""
    sets: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        sets[prediction.set_name].append(prediction)
    return {name: _set_score(members) for name, members in sets.items()}


def totals(predictions: Sequence[Prediction], of: Quantity = "speed") -> dict[str, SetScore]:
    """Totals for the speed, or another quantity, of all rows, and of those on many nodes; rows of different sets are not
    compared."""
    speeds = [_named_by_set(prediction) for prediction in predictions if prediction.of == of]
    many = [prediction for prediction in speeds if prediction.nodes > FEW_NODES]
    of_all = {"all": _set_score(speeds)} if speeds else {}
    return of_all | ({f"more than {FEW_NODES} nodes": _set_score(many)} if many else {})


def _named_by_set(prediction: Prediction) -> Prediction:
    """The prediction with its set's name in front of what it has in common with others."""
    name, choices = prediction.set_name, prediction.choices
    return replace(
        prediction, inputs=(name, *prediction.inputs), pairs=(name, *prediction.pairs), choices=choices and (name, *choices)
    )


def _set_score(members: Sequence[Prediction]) -> SetScore:
    scored = [m for m in members if not m.skipped]
    skipped = dict(Counter(m.skipped for m in members if m.skipped))
    if not scored:
        return SetScore(len(members), 0, skipped=skipped)
    errors = np.abs([m.error for m in scored])
    of_choices = regrets(scored)
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
        width90=_width(scored),
        regret_mean=fmean(of_choices) if of_choices else None,
        regret_worst=max(of_choices, default=None),
        skipped=skipped,
        assumed=dict(Counter(column for m in scored for column in m.assumed)),
    )


def _order_right(scored: Sequence[Prediction]) -> float | None:
    """Share of pairs, among those whose measurements differ by more than `_DIFFERENT`, that are predicted in their order."""
    groups: dict[tuple[str, ...], list[Prediction]] = defaultdict(list)
    for member in scored:
        groups[member.pairs].append(member)
    right = [
        (a.predicted < b.predicted) == (a.measured < b.measured) and a.predicted != b.predicted
        for group in groups.values()
        for a, b in itertools.combinations(group, 2)
        if abs(a.measured - b.measured) > _DIFFERENT * min(a.measured, b.measured) and a.inputs != b.inputs
    ]
    return sum(right) / len(right) if right else None


def _floor(scored: Sequence[Prediction]) -> float | None:
    """Median error of the best possible guess for repeated inputs, the median of their measurements; None without
    repetitions."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for member in scored:
        groups[member.inputs].append(member.measured)
    repeated = [np.array(group) for group in groups.values() if len(group) > 1]
    if not repeated:
        return None
    return float(np.median(np.concatenate([np.abs(np.median(group) / group - 1) for group in repeated])))


def _coverage(scored: Sequence[Prediction]) -> float | None:
    """Share of rows with an interval whose measurement lies in it; None if no row has an interval."""
    inside = [member.interval[0] <= member.measured <= member.interval[1] for member in scored if member.interval]
    return sum(inside) / len(inside) if inside else None


def _width(scored: Sequence[Prediction]) -> float | None:
    """Geometric mean of high over low of the intervals; None if no row has one."""
    logs = [
        math.log(member.interval[1] / member.interval[0]) for member in scored if member.interval and member.interval[0] > 0
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None
