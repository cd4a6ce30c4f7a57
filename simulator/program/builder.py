"""Program builder: adds tasks one by one or in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.communication import UNKNOWN, UNLABELLED, Communication
from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.common.parameter_server import SYNCHRONOUS, ConsistencyModel, WorkQuota
from scaleproof.simulator.common.speed_profile import Pace
from scaleproof.simulator.program.costs import NO_PATH, OWN, Duration, PathOf, Prices, SecondsOf, TaskCosts, UsesOf
from scaleproof.simulator.program.resources import ResourceTable, Rows
from scaleproof.simulator.program.table import COLLECTIVE_STREAM, MAIN_STREAM, NO_STREAM, Kind, Program, RankClasses

# Columns of a row that do not depend on prices, and its path and amount: type and default value.
_COLUMNS: Final[dict[str, tuple[type, float]]] = {
    "kind": (np.int8, Kind.COMPUTE),
    "rank": (np.int32, -1),
    "peer": (np.int32, -1),
    "stream": (np.int8, NO_STREAM),
    "phase": (np.int8, -1),
    "stage": (np.int32, -1),
    "microbatch": (np.int32, -1),
    "path": (np.int32, 0),
    "amount": (np.float64, 0.0),
    "requests": (np.int32, 0),
    "update_s": (np.float64, 0.0),
    "bucket": (np.int32, 0),
    "slot": (np.int32, -1),
    "together": (np.int32, -1),
    "partner": (np.int32, -1),
    "behind": (np.int32, -1),
    "ready_after": (np.int32, -1),
    "communication": (np.int16, UNKNOWN),
    "message_bytes": (np.float64, 0.0),
    "calls": (np.int32, 1),
    "first_layer": (np.int32, UNKNOWN),
    "last_layer": (np.int32, UNKNOWN),
}


class _Pairs:
    """Lists of values by row, collected in any order as whole lists and as arrays of (row, value) pairs."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._lists: list[Sequence[int]] = []
        self._pairs: list[tuple[Rows, Rows]] = []

    def add(self, row: int, values: Sequence[int]) -> None:
        self._rows.append(row)
        self._lists.append(values)

    def add_pairs(self, rows: ArrayLike, values: ArrayLike) -> None:
        """Adds pairs; arguments broadcast together, and values below zero are skipped."""
        row, value = np.broadcast_arrays(rows, values)
        given = value >= 0
        self._pairs.append((row[given], value[given]))

    def csr(self, rows: int) -> CsrLists:
        """The list of each of `rows` rows."""
        lists = CsrLists.from_lists(self._lists)
        keys = np.repeat(np.array(self._rows, dtype=np.int64), lists.counts)
        keys = np.concatenate([keys, *(row for row, _ in self._pairs)])
        values = np.concatenate([lists.values, *(value for _, value in self._pairs)])
        return CsrLists.grouped(keys, values, rows)


class ProgramBuilder:
    """Collects tasks; `build` returns the Program.

    Methods that add one task return its row; methods that add a block of tasks return their rows in the shape to which the
    arguments broadcast. Paths, and seconds of work, may be functions of prices; see `costs`. consistency: consistency model of
    the servers; units: as in `Program`. resources: those that do not depend on prices.
    """

    def __init__(self, consistency: ConsistencyModel = SYNCHRONOUS, units: WorkQuota | None = None) -> None:
        self._consistency = consistency
        self._units = units
        self._rank_names: list[str] = []
        self._multiplicity: list[int] = []
        self._is_server: list[bool] = []
        self._late_s: list[float] = []
        self._model_parallel_size: list[int] = []
        self._paces: list[tuple[Pace, ...]] = []
        self._slowdown: list[float] = []
        self._uses: list[UsesOf] = []
        self.resources = ResourceTable()
        self._paths: list[PathOf] = [NO_PATH]
        self._works: list[Duration] = []
        self._updates: list[Duration] = []
        self._delays: list[tuple[Rows, SecondsOf]] = []
        self._rows = 0
        # a block repeats one row; columns that vary from row to row are collected in _varying
        self._blocks: list[dict[str, Any]] = []
        self._block_rows: list[int] = []
        self._varying: dict[str, list[tuple[Rows, NDArray[Any]]]] = {name: [] for name in _COLUMNS}
        self._dependencies = _Pairs()
        self._carried = _Pairs()
        self._members = _Pairs()

    def resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        """Adds a shared resource that is no part of the cluster, and returns its number."""
        return self.resources.add(name, capacity, incast)

    def rank(
        self, name: str, *, multiplicity: int = 1, is_server: bool = False, uses: UsesOf = (),
        slowdown: float = 1.0, late_s: float = 0.0, model_parallel_size: int = 1, paces: tuple[Pace, ...] = (),
    ) -> int:  # fmt: skip
        """Adds a class of `multiplicity` equivalent ranks and returns its number.

        uses: resources of their compute; nothing shared if empty. slowdown: factor on the duration of their work. late_s:
        seconds after which they start their first step. model_parallel_size: number of ranks in the model-parallel group that
        shares each pass. paces: speed profiles of the ranks of that group; constant speed if empty.
        """
        self._rank_names.append(name)
        self._multiplicity.append(multiplicity)
        self._is_server.append(is_server)
        self._late_s.append(late_s)
        self._model_parallel_size.append(model_parallel_size)
        self._paces.append(paces)
        self._slowdown.append(slowdown)
        self._uses.append(uses)
        return len(self._rank_names) - 1

    def compute(
        self, rank: int, phase: int, work_s: SecondsOf, after: Sequence[int] = (), stage: int = -1, microbatch: int = -1,
        stream: int = MAIN_STREAM,
    ) -> int:  # fmt: skip
        """Adds `work_s` seconds of compute on a stream of the rank, its main stream by default, after the tasks `after`."""
        known = self._work(self._works, self._rows, rank, work_s)
        return self._add(
            after, rank=rank, stream=stream, phase=phase, stage=stage, microbatch=microbatch, path=OWN, amount=known
        )  # fmt: skip

    def computes(
        self, rank: ArrayLike, phase: ArrayLike, work_s: SecondsOf, after: Sequence[ArrayLike] = (),
        stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1,
        first_layer: ArrayLike = UNKNOWN, last_layer: ArrayLike = UNKNOWN,
    ) -> Rows:  # fmt: skip
        """Adds a block of `compute` tasks.

        work_s: if it is a function, it may return a pair, of the seconds of work and of the exposed seconds of collectives of
        the model-parallel group within each task. after: arrays of rows (below zero: none); each task follows its element of
        each array. first_layer, last_layer: layers that each task passes, unknown for tasks without such collectives.
        """
        known: ArrayLike = 0.0 if callable(work_s) else np.asarray(work_s) * np.array(self._slowdown)[np.asarray(rank)]
        rows = self._add_block(
            after, rank=rank, stream=MAIN_STREAM, phase=phase, stage=stage, microbatch=microbatch, slot=slot,
            first_layer=first_layer, last_layer=last_layer, path=OWN, amount=known,
        )  # fmt: skip
        if callable(work_s):
            self._works.append(Duration(rows, np.broadcast_to(rank, rows.shape), work_s))
        return rows

    def background(self, rank: int, amount: float, path: PathOf, phase: int, after: Sequence[int] = ()) -> int:
        """Adds a background task of a rank that occupies none of its streams: `amount`, in the unit of the path's rates, along
        `path`."""
        return self._add(after, rank=rank, phase=phase, path=self._path(path), amount=amount)

    def wait(self, rank: int, phase: int, after: Sequence[int], stage: int = -1, microbatch: int = -1) -> int:
        """Blocks the rank's main stream until the tasks `after` have ended; the wait is labelled `phase`."""
        return self.compute(rank, phase, 0.0, after, stage, microbatch)

    def transfer(
        self, source: int, target: int, size_bytes: float, path: PathOf, phase: int, after: Sequence[int],
        stage: int = -1, microbatch: int = -1, together: int = -1, labels: Communication = UNLABELLED,
    ) -> int:  # fmt: skip
        """Adds a transfer of `size_bytes` from one class to another along `path`."""
        return self._add(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            together=together, path=self._path(path), amount=size_bytes, **labels._asdict(),
        )  # fmt: skip

    def transfers(
        self, source: ArrayLike, target: ArrayLike, sizes_bytes: Sequence[float], paths: Sequence[PathOf], index: Rows,
        phase: int, after: Sequence[ArrayLike], stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1,
        labels: Communication = UNLABELLED,
    ) -> Rows:  # fmt: skip
        """Adds a block of `transfer` tasks. index: which of `sizes_bytes` and `paths` each task has. after: as in
        `computes`."""
        return self._add_block(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            slot=slot, path=self._path_numbers(paths)[index], amount=np.array(sizes_bytes)[index], **labels._asdict(),
        )  # fmt: skip

    def collective(
        self, members: Sequence[int], size_bytes: float, path: PathOf, phase: int, after: Sequence[int], stage: int = -1,
        microbatch: int = -1, slot: int = -1, labels: Communication = UNLABELLED, stream: int = COLLECTIVE_STREAM,
    ) -> int:  # fmt: skip
        """Adds a collective that moves `size_bytes` through each member. Collectives on one stream of the first member run one
        after another."""
        self._members.add(self._rows, members)
        return self._add(
            after, kind=Kind.COLLECTIVE, rank=members[0], stream=stream, phase=phase, stage=stage,
            microbatch=microbatch, slot=slot, path=self._path(path), amount=size_bytes, **labels._asdict(),
        )  # fmt: skip

    def collectives(
        self, members: Sequence[int], sizes_bytes: Sequence[float], paths: Sequence[PathOf], index: Rows, phase: int,
        after: ArrayLike, stage: int = -1, slot: ArrayLike = -1, labels: Communication = UNLABELLED,
    ) -> Rows:  # fmt: skip
        """Adds a block of `collective` tasks of the same members.

        index: which of `sizes_bytes` and `paths` each task has. after: rows, shape (collectives, predecessors of each).
        """
        rows = self._add_block(
            (), kind=Kind.COLLECTIVE, rank=members[0], stream=COLLECTIVE_STREAM, phase=phase, stage=stage, slot=slot,
            path=self._path_numbers(paths)[index], amount=np.array(sizes_bytes)[index], **labels._asdict(),
        )  # fmt: skip
        self._members.add_pairs(rows[:, None], members)
        self.follow(rows[:, None], after)
        return rows

    def delay(self, rows: Rows, share: SecondsOf) -> None:
        """Makes transfers or collectives take longer than on their paths alone, each by its share."""
        self._delays.append((rows, share))

    def serve(
        self, server: int, worker: int, phase: int, requests: int, service_s: SecondsOf, update_s: SecondsOf,
        after: Sequence[int], bucket: int = 0,
    ) -> int:  # fmt: skip
        """Adds `requests` equivalent requests of a worker class that are queued at a server after the tasks `after`.

        Each is served for `service_s` seconds in order of arrival. They end when the consistency model allows a reply; with BSP
        that is once all requests of this step for the bucket have been served and the update of `update_s` seconds is done.
        """
        row = self._rows
        known = self._work(self._works, row, server, service_s), self._work(self._updates, row, server, update_s)
        return self._add(
            after, kind=Kind.SERVE, rank=server, peer=worker, phase=phase, requests=requests, bucket=bucket, path=OWN,
            amount=known[0], update_s=known[1],
        )  # fmt: skip

    def follow(self, rows: ArrayLike, after: ArrayLike) -> None:
        """Adds dependencies: each task of `rows` also follows its element of `after` (below zero: none). Arguments broadcast
        together."""
        self._dependencies.add_pairs(rows, after)

    def pair(self, rows: Rows, partners: Rows) -> None:
        """Makes transfers partners of one another."""
        self._varying["partner"] += [(rows, partners), (partners, rows)]

    def announce_ready(self, rows: Rows, ready_after: Rows, behind: Rows) -> None:
        """Makes transfers wait until their receivers have announced that they are ready; see `Program`."""
        self._varying["ready_after"].append((rows, ready_after))
        self._varying["behind"].append((rows, behind))

    def carry(self, task: int, after: Sequence[int]) -> None:
        """Makes a task also wait for tasks of the previous step."""
        self._carried.add(task, after)

    def _work(self, works: list[Duration], row: int, rank: int, seconds: SecondsOf) -> float:
        """Seconds of a task if they are a number; else adds their function to `works`."""
        if not callable(seconds):
            return float(np.asarray(seconds)) * self._slowdown[rank]
        works.append(Duration(np.array([row]), np.array([rank]), seconds))
        return 0.0

    def _path(self, path: PathOf) -> int:
        """The number of a path."""
        self._paths.append(path)
        return len(self._paths) - 1

    def _path_numbers(self, paths: Sequence[PathOf]) -> Rows:
        return np.array([self._path(path) for path in paths], dtype=np.int64)

    def _add(self, after: Sequence[int], **columns: float) -> int:
        row = self._rows
        self._rows += 1
        self._blocks.append(columns)
        self._block_rows.append(1)
        self._dependencies.add(row, after)
        return row

    def _add_block(self, after: Sequence[ArrayLike], **columns: ArrayLike) -> Rows:
        shape = np.broadcast_shapes(*map(np.shape, [*columns.values(), *after]))
        rows = np.arange(self._rows, self._rows + math.prod(shape)).reshape(shape)
        self._rows += rows.size
        self._blocks.append({name: value for name, value in columns.items() if np.ndim(value) == 0})
        self._block_rows.append(rows.size)
        for name in columns.keys() - self._blocks[-1].keys():
            self._varying[name].append((rows, np.broadcast_to(columns[name], shape)))
        for previous in after:
            self.follow(rows, previous)
        return rows

    def _column(self, name: str) -> NDArray[Any]:
        dtype, default = _COLUMNS[name]
        values: NDArray[Any] = np.array([block.get(name, default) for block in self._blocks], dtype)
        column: NDArray[Any] = np.repeat(values, self._block_rows, axis=0)
        for rows, row_values in self._varying[name]:
            column[rows] = row_values
        return column

    def build(self, prices: Prices | None = None) -> Program:
        """The program with all tasks added so far. prices: arguments of costs that are functions."""
        columns: dict[str, Any] = {name: self._column(name) for name in _COLUMNS}
        costs = TaskCosts(
            self._paths, columns.pop("path"), columns["rank"], self._works, self._updates, self._delays, self._uses,
            np.array(self._slowdown), columns.pop("amount"), columns.pop("update_s"), self.resources,
        )  # fmt: skip
        return Program(
            ranks=RankClasses(
                tuple(self._rank_names),
                np.array(self._multiplicity, dtype=np.int64),
                np.array(self._is_server),
                np.array(self._late_s, dtype=np.float64),
                np.array(self._model_parallel_size, dtype=np.int64),
                tuple(self._paces),
            ),
            **columns,
            **costs.columns(prices),
            dependencies=self._dependencies.csr(self._rows),
            carried=self._carried.csr(self._rows),
            members=self._members.csr(self._rows),
            consistency=self._consistency,
            units=self._units,
            costs=costs,
            prices=prices,
        )
