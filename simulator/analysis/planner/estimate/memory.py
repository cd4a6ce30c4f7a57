"""Memory of the fullest rank of each of many configurations: that which `simulator.memory` computes for one of them, from parts
that many have in common."""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS, Configurations, distinct
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import fullest_rank_bytes, rank_kinds
from scaleproof.simulator.parallelism.stages import SEARCHED
from scaleproof.simulator.scenario.training import Training

# Columns that decide how a layer is divided over ranks.
_DIVISION: Final = ("tensor", "context", "expert", "expert_tensor", "sequence_parallel")


def memory_bytes(configurations: Configurations, most_bytes: float = math.inf) -> NDArray[np.float64]:
    """Bytes of the fullest rank in each configuration. They are infinite where not even full recomputation of as many or fewer
    samples needs at most `most_bytes`."""
    total_bytes = np.empty(len(configurations))
    for rows, placed in configurations.by_used_devices():
        total_bytes[rows] = _memory_bytes(placed, most_bytes)
    return total_bytes


def _memory_bytes(c: Configurations, most_bytes: float) -> NDArray[np.float64]:
    """Bytes of the fullest rank in some configurations, whose ranks use the same number of devices of each node."""
    space = c.space

    @cache
    def training(zero: int, recompute: int) -> Training:
        return space.scenario.training.model_copy(update={"zero": zero, "recompute": space.recompute[recompute]})

    # buckets matter to memory with stage 2 of ZeRO alone, the order of axes to libraries alone
    others = (getattr(c, name) for name in COLUMNS if name not in ("bucket", "order"))
    evaluated = distinct(*others, np.where(c.zero == 2, c.bucket, 0))
    divided: dict[tuple[int, ...], MemoryInputs] = {}
    rank_bytes, copies = np.full(len(evaluated), math.inf), np.zeros(len(evaluated), dtype=np.int64)
    # of configurations that are otherwise equal, fully recomputed ones come first, and fewer samples before more
    is_full = np.array([recompute.kind == "full" for recompute in space.recompute])[c.recompute]
    in_order = np.lexsort([c.samples[evaluated.first], ~is_full[evaluated.first]])
    varied = ("samples", "microbatches", "recompute", "bucket", "order")
    equal = c.distinct(*(name for name in COLUMNS if name not in varied)).code.tolist()
    too_many_samples: dict[int, int] = {}
    rows = evaluated.first[in_order]
    for number, row, values in zip(in_order.tolist(), rows.tolist(), c.values(rows), strict=True):
        if values["samples"] >= too_many_samples.get(equal[row], sys.maxsize):
            continue
        division = tuple(values[name] for name in _DIVISION)
        if division not in divided:
            divided[division] = MemoryInputs(c.scenario(row))
        if space.schedules[values["schedule"]] in SEARCHED:
            inputs = MemoryInputs(c.scenario(row))
        else:
            inputs = divided[division].varied(space.plan(values), training(values["zero"], values["recompute"]))
        rank_bytes[number] = fullest_rank_bytes(inputs)
        copies[number] = any(kind.copies for kind in rank_kinds(inputs))
        if is_full[row] and rank_bytes[number] > most_bytes:
            too_many_samples[equal[row]] = values["samples"]

    connected = c.distinct("tensor", "context", "expert", "workers", "stages", "order")
    library_bytes = np.empty((2, len(connected)))
    for number, values in enumerate(c.values(connected.first)):
        inputs = next(iter(divided.values())).varied(space.plan(values), space.scenario.training)
        library_bytes[:, number] = [sum(libraries_bytes(inputs, copied).values()) for copied in (False, True)]
    scale = space.scenario.framework.memory.scale
    result: NDArray[np.float64] = rank_bytes[evaluated.code]
    return result + scale * library_bytes[copies[evaluated.code], connected.code]
