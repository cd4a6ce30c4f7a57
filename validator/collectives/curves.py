"""Predicted curves of collectives with measured times over them: of published rows, and of points that were imported."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.analysis.collective.curves import (
    CollectiveCurve,
    MeasuredSize,
    drawn_sizes,
    predicted_curve,
)
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.published.tables import read_table
from scaleproof.validator.calibration.cluster_file import files
from scaleproof.validator.calibration.fit.collective_posterior import MeasuredTime, group_of, times_of
from scaleproof.validator.collectives.rows import Row, RowCase, case_of
from scaleproof.validator.probe import points as tables

_NEEDED: Final = frozenset({"collective", "n_gpus", "size_bytes", "gpu"})


def published_curves(table: Path, is_chosen: Callable[[Op, int], bool]) -> list[CollectiveCurve]:
    """A curve for each system, operation, group, algorithm and release of a table like the published one.

    is_chosen: whether an operation over a number of ranks is wanted. Rows that cannot be predicted are left out. Raises
    InputError for a table of another kind.
    """
    groups: defaultdict[tuple[str, ...], list[tuple[Row, RowCase]]] = defaultdict(list)
    columns, rows = read_table(table)
    if lacking := sorted(_NEEDED - set(columns)):
        raise InputError(f"{table}: no column {lacking[0]}; give one with the columns of scenarios/published/collectives.csv")
    for row in rows:
        try:
            case = case_of(row)
        except ScaleproofError:
            continue
        system = f"{row.get('instance_or_system') or 'not named'}, {row['gpu']}"
        release = row.get("nccl_version") or ""
        key = (system, case.op, str(case.ranks), case.algorithm or "", release, "PyTorch" if case.called_s else "")
        if case.size_bytes and is_chosen(case.op, case.ranks):
            groups[key].append((row, case))
    return [_published(key, [case for _, case in found]) for key, found in groups.items()]


def _published(key: Sequence[str], cases: Sequence[RowCase]) -> CollectiveCurve:
    system, _, _, algorithm, release, called = key
    first = cases[0]
    measured: defaultdict[float, list[float]] = defaultdict(list)
    for case in cases:
        measured[float(case.size_bytes)].append(case.measured_s)
    group = Group.of(first.ranks, first.cluster.node.devices)
    detail = ", ".join(part for part in (algorithm, f"NCCL {release}" if release else "", called) if part)
    return _curve(system, first.op, group, first.cluster, measured, detail, first.algorithm, first.called_s)


def _curve(
    system: str,
    op: Op,
    group: Group,
    cluster: Cluster,
    measured: dict[float, list[float]],
    detail: str = "",
    algorithm: str | None = None,
    called_s: float = 0.0,
) -> CollectiveCurve:
    """A curve over the measured sizes, with every measured time."""
    points = predicted_curve(op, group, cluster, drawn_sizes(list(measured)), algorithm, called_s)
    of_size = {point.size_bytes: point for point in points}
    over = tuple(MeasuredSize(time_s, of_size[size]) for size, times in sorted(measured.items()) for time_s in times)
    return CollectiveCurve(system, op, group.size, group.nodes, detail, points, over)


def measured_times(path: Path) -> list[MeasuredTime]:
    """Times of collectives in a cluster file's table of points, in that table, or in a CSV like the published one.

    Raises InputError for a file without such times.
    """
    if path.suffix == ".csv":
        times = list(_of_rows(path))
    else:
        table = path if path.suffix == ".parquet" else files.points_path(path)
        if not table.exists():
            raise InputError(f"{path}: no measured times next to it ({table.name}); give a cluster file that import wrote")
        times = times_of(tables.read(table))
    if not times:
        raise InputError(f"{path}: no times of collectives; give a file that import nccl-tests wrote, or a CSV of them")
    return times


def _of_rows(path: Path) -> Iterator[MeasuredTime]:
    """Median times of each group and size of a CSV."""
    found: defaultdict[tuple[Op, int, int, float], list[float]] = defaultdict(list)
    for row in read_table(path)[1]:
        try:
            case = case_of(row)
        except ScaleproofError:
            continue
        nodes = -(-case.ranks // case.cluster.node.devices)
        found[case.op, case.ranks, nodes, float(case.size_bytes)].append(case.measured_s)
    return (MeasuredTime(*key, statistics.median(times)) for key, times in found.items() if key[-1] > 0)


def curves_of(cluster: Cluster, name: str, times: Iterable[MeasuredTime]) -> list[CollectiveCurve]:
    """A curve of a cluster for each operation and group of measured times that the cluster has room for."""
    groups: defaultdict[tuple[Op, int, int], dict[float, list[float]]] = defaultdict(dict)
    for one in times:
        groups[one.op, one.ranks, one.nodes][one.size_bytes] = [one.seconds]
    curves = []
    for (op, ranks, nodes), measured in groups.items():
        group = group_of(MeasuredTime(op, ranks, nodes, 1.0, 1.0), cluster)
        if group is not None:
            curves.append(_curve(name, op, group, cluster, measured))
    return curves
