"""Memory of the fullest rank of each of many configurations."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS, Configurations, Values, distinct
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import Columns, MemoryInputs
from scaleproof.simulator.memory.ranks import fullest_rank_bytes, rank_kinds
from scaleproof.simulator.parallelism.stages import SEARCHED

# Columns that decide how a layer is divided over ranks; those that do not change the layers of a rank and its order of passes,
# unless that is searched for; and those that matter to few: buckets to ZeRO's stage 2, the order of axes to libraries.
_DIVISION: Final = ("tensor", "context", "expert", "expert_tensor", "sequence_parallel")
_VARIED: Final = ("zero", "samples", "microbatches")
_MINOR: Final = ("bucket", "order")


# Pipeline ranks that are considered, by configuration; all if None.
Among = Callable[[Values], Collection[int] | None]


def memory_bytes(configurations: Configurations, among: Among = lambda _: None) -> NDArray[np.float64]:
    """Bytes of the fullest rank in each configuration; zero where none is considered."""
    total_bytes = np.empty(len(configurations))
    for rows, placed in configurations.by_used_devices():
        total_bytes[rows] = _memory_bytes(placed, among)
    return total_bytes


def _memory_bytes(c: Configurations, among: Among) -> NDArray[np.float64]:
    """Bytes of the fullest rank in some configurations, whose ranks use the same number of devices of each node."""
    space, training = c.space, c.space.scenario.training
    evaluated = distinct(*(getattr(c, name) for name in COLUMNS if name not in _MINOR), np.where(c.zero == 2, c.bucket, 0))
    some = c.take(evaluated.first)
    is_searched = np.isin(some.schedule, [number for number, name in enumerate(space.schedules) if name in SEARCHED])
    equal = (getattr(some, name) for name in COLUMNS if name not in (*_VARIED, *_MINOR))
    together = distinct(*equal, np.where(is_searched, np.arange(len(some)), 0))
    # options of ZeRO's last stage have no effect in the others
    ordered, lasts = np.lexsort([some.zero, together.code]), np.cumsum(np.bincount(together.code)) - 1
    buckets_bytes = np.array(space.buckets_bytes)
    divided: dict[tuple[int, ...], MemoryInputs] = {}
    rank_bytes, copies = np.empty(len(some)), np.zeros(len(some), dtype=np.int64)
    for rows, values in zip(np.split(ordered, lasts[:-1] + 1), some.values(ordered[lasts]), strict=True):
        division = tuple(values[name] for name in _DIVISION)
        if division not in divided or is_searched[rows[0]]:
            divided[division] = MemoryInputs(some.scenario(int(rows[0])))
        recomputing = training.model_copy(update={"recompute": space.recompute[values["recompute"]]})
        zero, samples, microbatches = (getattr(some, name)[rows] for name in _VARIED)
        columns = Columns(zero, samples, microbatches, buckets_bytes[some.bucket[rows]])
        inputs = divided[division].varied(space.plan(values), recomputing, columns)
        rank_bytes[rows] = fullest_rank_bytes(inputs, among(values))
        copies[rows] = any(kind.copies for kind in rank_kinds(inputs))

    connected = c.distinct("tensor", "context", "expert", "workers", "stages", "order")
    library_bytes = np.empty((2, len(connected)))
    # libraries depend on how ranks are connected alone, not on columns or on the division of layers
    any_inputs = inputs
    for number, values in enumerate(c.values(connected.first)):
        inputs = any_inputs.varied(space.plan(values), training, columns)
        library_bytes[:, number] = [sum(libraries_bytes(inputs, copied).values()) for copied in (False, True)]
    scale = space.scenario.framework.memory.scale
    return rank_bytes[evaluated.code] + scale * library_bytes[copies[evaluated.code], connected.code]
