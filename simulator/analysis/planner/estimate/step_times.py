"""Expected and least step times of many configurations.

The parts of a step time depend on few columns each: layer times on how layers and samples are divided, gradient synchronisation
on which ranks share gradients. Each part is computed once for all configurations that have these columns in common, by the same
code that compiles programs, and the results are combined in arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.closed_forms import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct, taken
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import SyncRequests
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.rank_times import RankTimes
from scaleproof.simulator.analysis.planner.estimate.shape_tables import ConfigurationShape, PassTable, ShapeKey, SyncTable
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacements, StageMessages, TransferTimes
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]

# Columns that layer times and messages depend on, and columns that gradient synchronisation depends on.
PASS_COLUMNS: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "sequence_parallel", "order",
    "samples", "recompute",
)  # fmt: skip
SYNC_COLUMNS: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order",
)  # fmt: skip
# Configurations that are combined at once, so that they fit a processor's cache.
_AT_ONCE: Final = 16_384


class StepTimes(NamedTuple):
    """Seconds of a step by configuration: expected, and a lower bound of every replay of its static program."""

    expected_s: Times
    least_s: Times


def step_times(configurations: Configurations) -> StepTimes:
    """Step times of all configurations.

    Raises FieldError if a configuration turns out to be invalid, or if the order of its schedule is searched for.
    """
    c = configurations
    _check(c.space.schedules)
    expected_s, least_s = np.empty((2, len(c)))
    if not len(c):
        return StepTimes(expected_s, least_s)
    pass_columns = (*PASS_COLUMNS, "zero") if c.space.adds else PASS_COLUMNS
    pass_of, sync_of = c.distinct(*pass_columns), c.distinct(*SYNC_COLUMNS)
    pass_rows, sync_rows = c.take(pass_of.first), c.take(sync_of.first)
    passes, transfers = LayerPassTimes.of(pass_rows), TransferTimes(c.space.scenario.cluster)
    counts = np.unique(pass_rows.stages * pass_rows.chunks).tolist()
    cuts = {count: StageCut.of(passes.jobs[0].layers, count, c.space.counted) for count in counts}
    sizes_bytes, size_of = np.unique(passes.sent_bytes, return_inverse=True)
    placements = RankPlacements.of(pass_rows, passes.jobs[0])
    messages = StageMessages(transfers, c.space.scenario.cluster, sizes_bytes.tolist(), placements.all)
    codes = np.array([passes.key.code, messages.place[placements.code]])
    grouped = distinct(pass_rows.distinct("stages", "chunks", "schedule", "microbatches").code, *codes)
    representatives, representative_codes = pass_rows.take(grouped.first), codes[:, grouped.first]
    rows_by_shape, sync_rows_by_shape = _by_shape(representatives), _by_shape(sync_rows)
    shapes = {
        key: ConfigurationShape(
            key,
            representatives.take(rows),
            sync_rows.take(sync_rows_by_shape[key]),
            representative_codes[:, rows],
            cuts[key[0] * key[1]],
            messages,
        )
        for key, rows in rows_by_shape.items()
    }
    first = pass_of.code[sync_of.first]
    requests = SyncRequests(
        sync_rows, passes, np.array([passes.key.code[first], placements.code[first]]), placements.all, transfers, cuts
    )
    transfers_s = transfers.seconds()
    sent_s, sync_times = messages.seconds(transfers_s), requests.results(transfers_s)
    size_of = size_of.reshape(passes.sent_bytes.shape)
    tables = {
        key: RankTimes(
            shape,
            PassTable(shape, passes, sent_s, size_of),
            SyncTable(shape, passes, sync_times.take(sync_rows_by_shape[key])),
        )
        for key, shape in shapes.items()
    }
    p = taken(_index_in_shape(rows_by_shape)[grouped.code], pass_of.code)
    s = taken(_index_in_shape(sync_rows_by_shape), sync_of.code)
    for key, zero, rows in _by_shape_and_zero(sync_rows, sync_of.code):
        for some in np.split(rows, range(_AT_ONCE, len(rows), _AT_ONCE)):
            expected_s[some], least_s[some] = tables[key].times(taken(p, some), taken(s, some), zero)
    return StepTimes(expected_s, least_s)


def _check(schedules: Sequence[ScheduleName]) -> None:
    for schedule in schedules:
        if schedule not in (*CLOSED, *FOLLOWED):
            message = (
                f"{schedule} is not estimated, as its order is searched for; choose from {', '.join((*CLOSED, *FOLLOWED))}"
            )
            raise FieldError(("strategy", "schedule"), message)


def _by_shape(c: Configurations) -> dict[ShapeKey, Numbers]:
    """Rows of each shape."""
    key = c.distinct("stages", "chunks", "schedule")
    names = np.array([c.stages, c.chunks, c.schedule])[:, key.first].T.tolist()
    return {(stages, chunks, schedule): rows for (stages, chunks, schedule), rows in zip(names, _split(key.code), strict=True)}


def _index_in_shape(by_shape: Mapping[ShapeKey, Numbers]) -> Numbers:
    """Index of each row among the rows of its shape."""
    result = np.empty(sum(map(len, by_shape.values())), dtype=np.int64)
    for rows in by_shape.values():
        result[rows] = np.arange(len(rows))
    return result


def _by_shape_and_zero(sync_rows: Configurations, code: Numbers) -> Iterator[tuple[ShapeKey, int, Numbers]]:
    """Rows of configurations of each shape and ZeRO stage. code: the row of `sync_rows` of each configuration."""
    key = sync_rows.distinct("stages", "chunks", "schedule", "zero")
    names = np.array([sync_rows.stages, sync_rows.chunks, sync_rows.schedule, sync_rows.zero])[:, key.first].T.tolist()
    for (stages, chunks, schedule, zero), rows in zip(names, _split(taken(key.code, code)), strict=True):
        yield (stages, chunks, schedule), zero, rows


def _split(code: Numbers) -> list[Numbers]:
    """The rows of each code."""
    # numpy sorts short integers much faster
    short = code.astype(np.min_scalar_type(code.max(initial=0)))
    return np.split(np.argsort(short, kind="stable"), np.cumsum(np.bincount(code))[:-1])
