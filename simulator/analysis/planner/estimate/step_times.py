"""Times: what a step of each of many configurations takes, in closed form, and what it takes at least.

What a configuration's parts take follows from few of its columns: passes from how layers and samples are divided, sums from
who shares what. Each part is worked out once for all configurations that have it in common, by the same code that compiles
their programs, and put together in arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.gradient_sync_times import Sums
from scaleproof.simulator.analysis.planner.estimate.communication.placement import Places
from scaleproof.simulator.analysis.planner.estimate.communication.stage_messages import StageMessages
from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct, taken
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import CLOSED, FOLLOWED
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import follow
from scaleproof.simulator.analysis.planner.estimate.shape_times import Answered
from scaleproof.simulator.analysis.planner.estimate.shapes import ConfigurationShape, Cut, Key
from scaleproof.simulator.analysis.planner.estimate.tables import AgreeingTable, PassingTable
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]

# What a configuration's passes follow from, and what its replicas' sums do.
_PASSING: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "sequence_parallel", "order",
    "samples", "recompute",
)  # fmt: skip
_AGREEING: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order",
)  # fmt: skip
# Configurations that are put together at once, so that a processor's cache holds them.
_AT_ONCE: Final = 16_384


class StepTimes(NamedTuple):
    """Seconds of a step, by configuration: expected, and at least. No replay of a static program beats the latter."""

    expected_s: Times
    least_s: Times


class _ShapeRows(NamedTuple):
    """Configurations of one shape and one ZeRO stage: their rows, and those that they are of the table's two tables."""

    table: Answered
    zero: int
    rows: Numbers
    p: Numbers
    a: Numbers


def step_times(configurations: Configurations) -> StepTimes:
    """Of all configurations. Raises FieldError where one is not valid after all, or passed in an order that is searched for."""
    c = configurations
    _check(c.space.schedules)
    expected_s, least_s = np.empty((2, len(c)))
    if not len(c):
        return StepTimes(expected_s, least_s)
    passing_by = (*_PASSING, "zero") if c.space.adds else _PASSING
    to_passing, to_agreeing = c.distinct(*passing_by), c.distinct(*_AGREEING)
    passing, agreeing = c.take(to_passing.first), c.take(to_agreeing.first)
    passes, wires = LayerPassTimes.of(passing), TransferTimes(c.space.scenario.cluster)
    counts = np.unique(passing.stages * passing.chunks).tolist()
    cuts = {count: Cut.of(passes.jobs[0].layers, count, c.space.counted) for count in counts}
    sizes_bytes, size_of = np.unique(passes.sent_bytes, return_inverse=True)
    places = Places.of(passing, passes.jobs[0])
    messages = StageMessages(wires, c.space.scenario.cluster, sizes_bytes.tolist(), places.all)
    codes = np.array([passes.key.code, messages.place[places.code]])
    told = distinct(passing.distinct("stages", "chunks", "schedule", "microbatches").code, *codes)
    each, of_each = passing.take(told.first), codes[:, told.first]
    shapes, groups = _by_shape(each), _by_shape(agreeing)
    found = {
        key: ConfigurationShape(
            key, each.take(rows), agreeing.take(groups[key]), of_each[:, rows], cuts[key[0] * key[1]], messages
        )
        for key, rows in shapes.items()
    }
    first = to_passing.code[to_agreeing.first]
    sums = Sums(agreeing, passes, np.array([passes.key.code[first], places.code[first]]), places.all, wires, cuts)
    answers = wires.seconds()
    seconds = answers[messages.numbers()] if len(messages.numbers()) else np.zeros((0, len(sizes_bytes)))
    agreed, size_of = sums.answered(answers), size_of.reshape(passes.sent_bytes.shape)
    tables = {
        key: Answered(
            shape, PassingTable(shape, passes, seconds, size_of), AgreeingTable(shape, passes, agreed.take(groups[key]))
        )
        for key, shape in found.items()
    }
    p, a = taken(_places(shapes)[told.code], to_passing.code), taken(_places(groups), to_agreeing.code)
    parts = [
        _ShapeRows(tables[key], zero, some := rows[begin : begin + _AT_ONCE], taken(p, some), taken(a, some))
        for key, zero, rows in _alike(agreeing, to_agreeing.code)
        for begin in range(0, len(rows), _AT_ONCE)
    ]
    gatherings = [part.table.gathering(part.p, part.a, part.zero) for part in parts]
    expected = [*(table.passing.expected for table in tables.values()), *(one.expected for one in gatherings)]
    follow(one for one in expected if one is not None)
    for part, gathering in zip(parts, gatherings, strict=True):
        expected_s[part.rows], least_s[part.rows] = part.table.times(part.p, part.a, part.zero, gathering)
    return StepTimes(expected_s, least_s)


def _check(schedules: Sequence[ScheduleName]) -> None:
    for schedule in schedules:
        if schedule not in (*CLOSED, *FOLLOWED):
            message = (
                f"what {schedule} takes is not estimated, as its order is searched for; give {', '.join((*CLOSED, *FOLLOWED))}"
            )
            raise FieldError(("strategy", "schedule"), message)


def _by_shape(c: Configurations) -> dict[Key, Numbers]:
    """The rows that have as many stages and chunks, and the same schedule, by these three."""
    key = c.distinct("stages", "chunks", "schedule")
    names = np.array([c.stages, c.chunks, c.schedule])[:, key.first].T.tolist()
    return {(stages, chunks, schedule): rows for (stages, chunks, schedule), rows in zip(names, _split(key.code), strict=True)}


def _places(by_shape: Mapping[Key, Numbers]) -> Numbers:
    """The place of each row among those of its shape."""
    result = np.empty(sum(map(len, by_shape.values())), dtype=np.int64)
    for rows in by_shape.values():
        result[rows] = np.arange(len(rows))
    return result


def _alike(agreeing: Configurations, code: Numbers) -> Iterator[tuple[Key, int, Numbers]]:
    """Configurations of one shape and one ZeRO stage. code: the row of `agreeing` that each has."""
    key = agreeing.distinct("stages", "chunks", "schedule", "zero")
    names = np.array([agreeing.stages, agreeing.chunks, agreeing.schedule, agreeing.zero])[:, key.first].T.tolist()
    for (stages, chunks, schedule, zero), rows in zip(names, _split(taken(key.code, code)), strict=True):
        yield (stages, chunks, schedule), zero, rows


def _split(code: Numbers) -> list[Numbers]:
    """The rows of each code."""
    # numpy sorts short integers much faster
    short = code.astype(np.min_scalar_type(code.max(initial=0)))
    return np.split(np.argsort(short, kind="stable"), np.cumsum(np.bincount(code))[:-1])
