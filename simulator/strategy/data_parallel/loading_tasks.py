"""Feeding: what brings the samples of a step to the ranks that read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.simulator.program import Path, ProgramBuilder, Use
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.data_loading import Input
from scaleproof.simulator.strategy.job import Job

# loading and the waits around it come before a step's first task: slots that may be theirs
FIRST_SLOT: Final = 3


class Feeding:
    """Adds the loading of batches to a program, and what is shared for it: storage, and the cores that decode."""

    def __init__(self, builder: ProgramBuilder, job: Job) -> None:
        self._builder = builder
        self._input = job.input
        self._samples = job.samples_per_worker
        self._resources: dict[str, int] = {}

    def add(self, rank: int, node: int, each: int, alike: int, samples: int | None = None) -> None:
        """Makes a rank class wait for its batch at the beginning of every step; to be called before it computes.

        each: ranks of the class on every node like `node`; alike: on all nodes. samples: of its batch, the job's if None. A
        batch begins to load once the one before it is loaded and there is room for it: `prefetch` steps ago one was taken.
        """
        given = self._input
        if given is None:
            return
        # without room for another batch it is loaded once the step begins
        after = [] if given.prefetch else [self._builder.wait(rank, Phase.INPUT, [])]
        loads = [
            self._builder.beside(rank, amount, path, Phase.INPUT, after)
            for amount, path in self._parts(given, self._samples if samples is None else samples, node, each, alike)
        ]
        room = self._builder.wait(rank, Phase.INPUT, loads)
        for _ in range(given.prefetch - 1):
            earlier, room = room, self._builder.beside(rank, 0.0, Path(0.0, 1.0), Phase.INPUT)
            self._builder.carry(room, [earlier])
        for load in loads:
            self._builder.carry(load, [load, room] if given.prefetch else [load])

    def _parts(self, given: Input, samples: int, node: int, each: int, alike: int) -> Iterator[tuple[float, Path]]:
        """What loading a batch consists of: bytes from storage, and seconds of a core."""
        if given.storage is not None:
            shared = given.storage.shared_by == "cluster"
            name, count = ("storage", alike) if shared else (f"node {node} storage", each)
            yield given.storage.sample_bytes * samples, self._path(name, given.storage.bandwidth_Bps, count)
        if given.decode_s > 0:
            yield given.decode_s * samples, self._path(f"node {node} decoding", given.cores, each)

    def _path(self, name: str, capacity: float, count: int) -> Path:
        if name not in self._resources:
            self._resources[name] = self._builder.resource(name, capacity)
        return Path(0.0, capacity, (Use(self._resources[name], count),))
