"""Data loading: reading and decoding samples concurrently with training, some batches ahead; and its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import NO_STREAM, Path, Program, ProgramBuilder, Use
from scaleproof.simulator.scenario.training import Input

# Ends of the names of the resources that load.
STORAGE: Final = "storage"
DECODING: Final = "decoding"
# Scheduling slots reserved for loading and its waits, before a step's first task.
FIRST_SLOT: Final = 3


class BatchLoader:
    """Adds the loading of batches to a program, and its shared resources: storage, and the cores that decode."""

    def __init__(self, builder: ProgramBuilder, input_: Input, samples: int) -> None:
        """samples: of a worker in a step."""
        self._builder, self._input, self._samples = builder, input_, samples
        self._resources: dict[str, int] = {}

    def add(self, rank: int, node: int, each: int, total: int, samples: int | None = None) -> None:
        """Makes a rank class wait for its batch at the beginning of every step; must be called before its compute tasks are
        added.

        each: ranks of the class on each of its nodes; total: on all nodes. samples: size of its batch, that of the loader if
        None. A batch begins to load when the previous one is loaded and a slot is free, that is, `prefetch` steps after an
        earlier batch was used.
        """
        input_ = self._input
        # without prefetch, loading begins with the step
        after = [] if input_.prefetch else [self._builder.wait(rank, Phase.INPUT, [])]
        loads = [
            self._builder.background(rank, amount, path, Phase.INPUT, after)
            for amount, path in self._parts(input_, self._samples if samples is None else samples, node, each, total)
        ]
        slot = self._builder.wait(rank, Phase.INPUT, loads)
        for _ in range(input_.prefetch - 1):
            previous, slot = slot, self._builder.background(rank, 0.0, Path(0.0, 1.0), Phase.INPUT)
            self._builder.carry(slot, [previous])
        for load in loads:
            self._builder.carry(load, [load, slot] if input_.prefetch else [load])

    def _parts(self, input_: Input, samples: int, node: int, each: int, multiplicity: int) -> Iterator[tuple[float, Path]]:
        """Amounts and paths of loading a batch: bytes from storage, and seconds of a core."""
        if input_.storage is not None:
            shared = input_.storage.shared_by == "cluster"
            name, count = (STORAGE, multiplicity) if shared else (f"node {node} {STORAGE}", each)
            yield input_.storage.sample_bytes * samples, self._path(name, input_.storage.bandwidth_Bps, count)
        if input_.decode_s > 0:
            yield input_.decode_s * samples, self._path(f"node {node} {DECODING}", input_.cores, each)

    def _path(self, name: str, capacity: float, count: int) -> Path:
        if name not in self._resources:
            self._resources[name] = self._builder.resource(name, capacity)
        return Path(0.0, capacity, (Use(self._resources[name], count),))


def loading_s(program: Program) -> dict[str, float]:
    """Seconds in which storage, and the cores that decode, load the samples of a step: of the slowest storage or node."""
    loads = np.flatnonzero((program.phase == Phase.INPUT) & (program.stream == NO_STREAM) & (program.amount > 0))
    index, resource, count = program.routes.used(program.route[loads])
    seconds = np.zeros(len(program.resources.names))
    np.add.at(seconds, resource, program.amount[loads][index] * count / program.resources.capacity[resource])
    result: dict[str, float] = {}
    for name, value in zip(program.resources.names, seconds.tolist(), strict=True):
        part = name.rpartition(" ")[2]
        if part in (STORAGE, DECODING) and value > 0:
            result[part] = max(value, result.get(part, 0.0))
    return result
