"""Memory of the fullest rank of each of many configurations: that which `simulator.memory` computes for one of them, from parts
that many have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import distinct, taken
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import fullest_rank_bytes, rank_kinds

# Columns that decide how a layer is divided over ranks.
_DIVISION = ("tensor", "context", "expert", "expert_tensor", "sequence_parallel")
_SEARCHED = ("zb_1p", "zb_2p")


def memory_bytes(configurations: Configurations) -> NDArray[np.float64]:
    """Bytes of the fullest rank in each configuration."""
    total_bytes = np.empty(len(configurations))
    for rows, placed in configurations.by_used_devices():
        total_bytes[rows] = _memory_bytes(placed)
    return total_bytes


def _memory_bytes(c: Configurations) -> NDArray[np.float64]:
    """Bytes of the fullest rank in some configurations, whose ranks use the same number of devices of each node."""
    space, rests = c.space, c.rests
    # buckets matter to memory with stage 2 of ZeRO alone; the order of axes to libraries alone
    bucket = np.where(rests["zero"] == 2, rests["bucket"], 0)
    shapes = np.arange(len(c.shapes["tensor"]))
    evaluated = c.distinct_by_codes(shapes, distinct(rests["zero"], rests["recompute"], bucket).code)
    trainings = {
        (zero, number): space.scenario.training.model_copy(update={"zero": zero, "recompute": recompute})
        for zero in range(4)
        for number, recompute in enumerate(space.recompute)
    }
    divided: dict[tuple[int, ...], MemoryInputs] = {}
    rank_bytes = np.empty(len(evaluated))
    copies = np.empty(len(evaluated), dtype=np.bool_)
    for number, (row, values) in enumerate(zip(evaluated.first.tolist(), c.values(evaluated.first), strict=True)):
        key = tuple(values[name] for name in _DIVISION)
        if space.schedules[values["schedule"]] in _SEARCHED:
            inputs = MemoryInputs(c.scenario(row))
        else:
            if key not in divided:
                divided[key] = MemoryInputs(c.scenario(row))
            inputs = divided[key].varied(space.plan(values), trainings[values["zero"], values["recompute"]])
        rank_bytes[number] = fullest_rank_bytes(inputs)
        copies[number] = any(rank.copies for rank in rank_kinds(inputs))
    grouped = c.distinct("tensor", "context", "expert", "workers", "stages", "order")
    of_libraries = np.empty((2, len(grouped)))
    for number, values in enumerate(c.values(grouped.first)):
        inputs = next(iter(divided.values())).varied(space.plan(values), trainings[0, 0])
        for copied in (False, True):
            of_libraries[int(copied), number] = sum(libraries_bytes(inputs, copied).values())
    library_bytes = of_libraries[taken(copies, evaluated.code).astype(np.int64), grouped.code]
    result: NDArray[np.float64] = taken(rank_bytes, evaluated.code) + space.scenario.framework.memory.scale * library_bytes
    return result
