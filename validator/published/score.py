"""Others' measurements against our predictions: the score of tables.

Every row is scored, or skipped for a reason that is counted; a blank that had to be assumed is counted by its column. What a
table is shows in its columns: `TABLES` says which module predicts which.
"""

from __future__ import annotations

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
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.frameworks import ABLATIONS
from scaleproof.simulator.run.run import write_aside
from scaleproof.simulator.scenario.published.tables import Row, folder, read_table
from scaleproof.validator import parallel_map

# Of many rows' intervals: what brings less of the deviation than this is left out, which narrows none by more than a twentieth.
COARSE: Final = 0.3
_TITLES: Final = f"{'mean':>7} {'median':>7} {'p95':>7} {'worst':>7} {'order':>6} {'floor':>6} {'in 90%':>6}"
# Pairs of rows are compared for their order where their measurements differ by more than this share.
_DIFFERENT: Final = 0.05
ROW_COLUMNS: Final = (
    "id", "set", "of", "predicted", "measured", "error", "low", "high", "assumed", "framework", "scenario",
)  # fmt: skip
# What small runs teach about larger ones shows beyond so many nodes.
FEW_NODES: Final = 2


class Options(NamedTuple):
    """How rows are predicted. calibrated: with constants that were fitted on named rows. ablate: mechanisms of the framework
    that are switched off. frameworks: whether scenarios name the row's framework, or leave that to the default."""

    calibrated: bool = False
    ablate: tuple[str, ...] = ()
    frameworks: bool = True


@dataclass(frozen=True)
class Prediction:
    """One row: the set it counts in, and either both values or why it is skipped.

    id: of the row. framework: that trained it in the scenario; scenario: what `scaleproof show` prints it by. inputs: what
    tells rows apart that should measure the same. pairs: rows that share it are compared for their order. interval: where the
    measured value is predicted to be with a probability of 90 %, where that is told. of: what is predicted; totals are of
    speed, a time or a rate. nodes: that it took, 0 where the row does not say.
    """

    set_name: str
    predicted: float = math.nan
    measured: float = math.nan
    skipped: str = ""
    assumed: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    of: Literal["speed", "memory", "fit"] = "speed"
    nodes: int = 0
    id: str = ""
    framework: str = ""
    scenario: str = ""

    @property
    def error(self) -> float:
        """Signed, as a fraction of what was measured."""
        return self.predicted / self.measured - 1

    def plain(self) -> dict[str, Any]:
        """As data for a line of `--rows` and for JSON, with the names of `ROW_COLUMNS`."""
        low, high = self.interval or (None, None)
        values = (
            self.id, self.set_name, self.of, self.predicted, self.measured, self.error, low, high, " ".join(self.assumed),
            self.framework, self.scenario,
        )  # fmt: skip
        return dict(zip(ROW_COLUMNS, values, strict=True))


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
    """A table's score by set; calibration: the rows that constants were fitted on, which are left out of it. totals: of the
    speed of all rows, and of those on more than `FEW_NODES` nodes, where there are any."""

    table: str
    sets: Mapping[str, SetScore]
    calibration: tuple[str, ...] = ()
    totals: Mapping[str, SetScore] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()

    def plain(self) -> dict[str, Any]:
        """As data for JSON; rows are those that were scored."""
        rows = [one.plain() for one in self.predictions if not one.skipped]
        return {"table": self.table, "sets": _plain(self.sets), "totals": _plain(self.totals), "rows": rows}


@dataclass(frozen=True)
class Scores:
    """Scores of tables, and their totals together."""

    tables: Sequence[Score]
    totals: Mapping[str, SetScore]

    @property
    def predictions(self) -> Sequence[Prediction]:
        """Of all tables."""
        return [one for table in self.tables for one in table.predictions]

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        return {"tables": [table.plain() for table in self.tables], "totals": _plain(self.totals)}


def _plain(scores: Mapping[str, SetScore]) -> dict[str, dict[str, Any]]:
    return {name: dict(vars(score)) for name, score in scores.items()}


@dataclass(frozen=True)
class Table:
    """A kind of table: the columns that tell it, and the module whose `predict` and `CALIBRATION` it takes.

    `predict` gives a row's prediction, or one for each measurement that the row holds; `predict_among` of a row and all rows,
    where rows are predicted from others. has_options: whether `predict` takes `Options`, and the module has `CALIBRATED`.
    """

    name: str
    columns: frozenset[str]
    module: str
    has_options: bool = False


TABLES: Final = (
    Table(
        "collectives",
        frozenset({"collective", "gpu", "n_gpus", "size_bytes", "instance_or_system"}),
        "scaleproof.validator.published.collectives",
    ),
    Table(
        "transformer_training",
        frozenset({"layers", "hidden", "tp", "pp", "dp", "step_time_s"}),
        "scaleproof.validator.published.transformer_training",
        has_options=True,
    ),
    Table(
        "data_parallel_scaling",
        frozenset({"model", "method", "gpus", "servers", "samples_per_s"}),
        "scaleproof.validator.published.data_parallel_scaling",
    ),
    Table(
        "pipeline_schedules",
        frozenset({"schedule", "stages", "microbatches", "step_time_s"}),
        "scaleproof.validator.published.pipeline_schedules",
    ),
    Table(
        "layer_times",
        frozenset({"recompute", "tp", "forward_ms", "backward_ms"}),
        "scaleproof.validator.published.layer_times",
    ),
)


class _Asked(NamedTuple):
    """A table to score: its kind and its rows, and what predicts one of them; calibration: as `Score` has it."""

    table: Table
    rows: Sequence[Row]
    predict: Callable[[Row], Prediction | Sequence[Prediction]]
    calibration: tuple[str, ...]


def score(path: Path, options: Options = Options()) -> Score:  # noqa: B008 (it never changes)
    """The score of a table of any kind that `TABLES` can predict.

    Raises InputError when it is none of them, or has no rows, or takes no such options.
    """
    return score_all([path], options).tables[0]


def score_all(paths: Iterable[Path], options: Options = Options()) -> Scores:  # noqa: B008 (it never changes)
    """The scores of several tables, on all cores together; arguments and errors as `score` has them."""
    for mechanism in options.ablate:
        if mechanism not in ABLATIONS:
            raise InputError(f"--ablate {mechanism}: no such mechanism; give one of {', '.join(ABLATIONS)}")
    asked = [_asked(path, options) for path in paths]
    found = iter(parallel_map.each(_predicted, [(one.predict, row) for one in asked for row in one.rows]))
    of_tables = [[each for _ in one.rows for each in next(found)] for one in asked]
    scores = [
        Score(one.table.name, summarise(predictions), one.calibration, totals(predictions), predictions)
        for one, predictions in zip(asked, of_tables, strict=True)
    ]
    return Scores(scores, totals(list(itertools.chain.from_iterable(of_tables))))


def write_rows(predictions: Iterable[Prediction], path: Path) -> None:
    """Writes one line of CSV for each row that was scored, aside and then renamed. Raises OSError where it cannot."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(one.plain() for one in predictions if not one.skipped)
    write_aside(path, text.getvalue().encode())


def tables_at(places: Sequence[Path]) -> list[Path]:
    """The tables that can be scored in these places, in their order: files, and in a folder those of its CSV files that are
    such tables; what ships, without any place. Raises InputError where a folder has none."""
    found: list[Path] = []
    for place in places or [folder()]:
        inside = [path for path in sorted(place.glob("*.csv")) if _kind(_columns(path))] if place.is_dir() else [place]
        if not inside:
            raise InputError(f"{place}: no table that can be scored; it needs CSV files with the columns of one of {_known()}")
        found += inside
    return found


def _columns(path: Path) -> Sequence[str]:
    """Names in the first line of a CSV file."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return next(csv.reader(file), [])


def _asked(path: Path, options: Options) -> _Asked:
    columns, rows = read_table(path)
    table = _kind(columns)
    if table is None:
        raise InputError(f"{path}: not a table that can be scored; it needs the columns of one of {_known()}")
    if not rows:
        raise InputError(f"{path}: no rows below its columns; give at least one")
    module = importlib.import_module(table.module)
    if options.calibrated and not table.has_options:
        raise InputError(f"{path}: nothing of {table.name} is fitted on request; leave --calibrated out")
    if hasattr(module, "predict_among"):
        predict = functools.partial(module.predict_among, rows=rows)
    else:
        predict = functools.partial(module.predict, options=options) if table.has_options else module.predict
    return _Asked(table, rows, predict, module.CALIBRATED if options.calibrated else module.CALIBRATION)


def _predicted(one: tuple[Callable[[Row], Prediction | Sequence[Prediction]], Row]) -> Sequence[Prediction]:
    predict, row = one
    found = predict(row)
    return [replace(each, id=row["id"]) for each in ([found] if isinstance(found, Prediction) else found)]


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


def totals(predictions: Sequence[Prediction]) -> dict[str, SetScore]:
    """Of the speed of all rows, and of those of many nodes; rows of different sets are not compared for their order."""
    speeds = [
        replace(one, inputs=(one.set_name, *one.inputs), pairs=(one.set_name, *one.pairs))
        for one in predictions
        if one.of == "speed"
    ]
    many = [one for one in speeds if one.nodes > FEW_NODES]
    of_all = {"all": _set_score(speeds)} if speeds else {}
    return of_all | ({f"more than {FEW_NODES} nodes": _set_score(many)} if many else {})


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
    """Share of comparable pairs, whose measurements differ by more than `_DIFFERENT`, that are predicted in their order."""
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


def describe(result: Scores) -> str:
    """The scores as tables under one another for people to read."""
    parts = [(one.table, [*one.sets.items(), *one.totals.items()], _told(one)) for one in result.tables]
    if len(parts) > 1:
        parts.append(("all tables", [*result.totals.items()], []))
    width = max(len(name) for name in ("set", *(name for _, named, _ in parts for name, _ in named)))
    head = f"{'set':<{width}} {'rows':>5} {'scored':>6} {_TITLES}"
    return "\n\n".join(
        "\n".join([title, head, *(f"{name:<{width}} {_line(each)}" for name, each in named), *told])
        for title, named, told in parts
    )


def _line(each: SetScore) -> str:
    shares = [_percent(value, 7) for value in (each.mean, each.median, each.p95, each.worst)]
    shares += [_percent(value, 6) for value in (each.order_right, each.floor, each.coverage90)]
    return f"{each.rows:>5} {each.scored:>6} {' '.join(shares)}"


def _told(result: Score) -> list[str]:
    """What was skipped, assumed and fitted."""
    counted = [(title, _total(result, title)) for title in ("skipped", "assumed")]
    lines = [f"{title}: {', '.join(f'{what} ({n} rows)' for what, n in counts.items())}" for title, counts in counted if counts]
    return lines + [f"constants fitted on, and left out: {subset}" for subset in result.calibration]


def _total(result: Score, name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in result.sets.values():
        total.update(getattr(each, name))
    return total


def _percent(value: float | None, width: int) -> str:
    return f"{'–' if value is None else f'{value:.1%}':>{width}}"
