"""Program builder: adds tasks one by one or in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

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

# A task by its row or its rank class; a block of tasks by an array of these.
Tasks = TypeVar("Tasks", int, Rows)
# Rows that a task follows; of a block, arrays of rows (below zero: none), each with a row for each of its tasks.
After = Sequence[ArrayLike] | Rows
# An array of paths or of their functions.
Paths = NDArray[np.object_]


class _Pairs:
    """Lists of values by row, collected in any order as whole lists and as arrays of (row, value) pairs."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._lists: list[Sequence[int]] = []
        self._pairs: list[tuple[Rows, Rows]] = []

    def add(self, rows: int | Rows, values: After) -> None:
        """Adds a list of a row, or of each of a block of rows."""
        if isinstance(rows, np.ndarray):
            for of_rows in [values] if isinstance(values, np.ndarray) else values:
                self.add_pairs(rows, of_rows)
        else:
            self._rows.append(rows)
            self._lists.append(cast(Sequence[int], values))

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

    Methods add one task and return its row, or a block of tasks and return the array of their rows: where the rank is an array,
    arguments broadcast together. Paths, and seconds of work, may be functions of prices; see `costs`. consistency: consistency
    model of the servers; units: as in `Program`. resources: those that do not depend on prices.
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
        self._path_numbers: dict[int, int] = {}
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
        self, rank: Tasks, phase: ArrayLike, work_s: SecondsOf, after: After = (), stage: ArrayLike = -1,
        microbatch: ArrayLike = -1, stream: int = MAIN_STREAM, slot: ArrayLike = -1,
        first_layer: ArrayLike = UNKNOWN, last_layer: ArrayLike = UNKNOWN,
    ) -> Tasks:  # fmt: skip
        """Adds `work_s` seconds of compute on a stream of the rank, its main stream by default, after the tasks `after`.

        work_s: if it is a function, it may return a pair, of the seconds of work and of the exposed seconds of collectives of
        the model-parallel group within each task. first_layer, last_layer: layers that each task passes, unknown for tasks
        without such collectives.
        """
        rows = self._add(
            rank, after, stream=stream, phase=phase, stage=stage, microbatch=microbatch, slot=slot,
            first_layer=first_layer, last_layer=last_layer, path=OWN, amount=self._known_s(rank, work_s),
        )  # fmt: skip
        self._add_duration(self._works, rows, rank, work_s)
        return rows

    def background(self, rank: int, amount: float, path: PathOf, phase: int, after: Sequence[int] = ()) -> int:
        """Adds a background task of a rank that occupies none of its streams: `amount`, in the unit of the path's rates, along
        `path`."""
        return self._add(rank, after, phase=phase, path=self._path(path), amount=amount)

    def wait(self, rank: Tasks, phase: ArrayLike, after: After, stage: ArrayLike = -1, microbatch: ArrayLike = -1) -> Tasks:
        """Blocks the rank's main stream until the tasks `after` have ended; the wait is labelled `phase`."""
        return self.compute(rank, phase, 0.0, after, stage, microbatch)

    def transfer(
        self, source: Tasks, target: Tasks, size_bytes: ArrayLike, path: PathOf | Paths, phase: int,
        after: After, stage: ArrayLike = -1, microbatch: ArrayLike = -1, together: int = -1,
        labels: Communication = UNLABELLED, slot: ArrayLike = -1, stream: int = NO_STREAM,
    ) -> Tasks:  # fmt: skip
        """Adds a transfer of `size_bytes` from one class to another along `path`. Transfers on one stream of the source run
        one after another."""
        return self._add(
            source, after, kind=Kind.TRANSFER, peer=target, stream=stream, phase=phase, stage=stage, microbatch=microbatch,
            together=together, slot=slot, path=self._path(path), amount=size_bytes, **labels._asdict(),
        )  # fmt: skip

    def collective(
        self, members: Sequence[Tasks], size_bytes: ArrayLike, path: PathOf | Paths, phase: int,
        after: After, stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1,
        labels: Communication = UNLABELLED, stream: int = COLLECTIVE_STREAM,
    ) -> Tasks:  # fmt: skip
        """Adds a collective that moves `size_bytes` through each member. Collectives on one stream of the first member run one
        after another."""
        rows = self._add(
            members[0], after, kind=Kind.COLLECTIVE, stream=stream, phase=phase, stage=stage, microbatch=microbatch,
            slot=slot, path=self._path(path), amount=size_bytes, **labels._asdict(),
        )  # fmt: skip
        self._members.add(rows, members)
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
        row = self._add(
            server, after, kind=Kind.SERVE, peer=worker, phase=phase, requests=requests, bucket=bucket, path=OWN,
            amount=self._known_s(server, service_s), update_s=self._known_s(server, update_s),
        )  # fmt: skip
        self._add_duration(self._works, row, server, service_s)
        self._add_duration(self._updates, row, server, update_s)
        return row

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

    def _known_s(self, ranks: int | Rows, seconds: SecondsOf) -> ArrayLike:
        """Seconds of tasks if they are numbers; zero if they are a function."""
        if callable(seconds):
            return 0.0
        if isinstance(ranks, np.ndarray):
            known_s: NDArray[np.float64] = np.asarray(seconds) * np.array(self._slowdown)[ranks]
            return known_s
        return float(np.asarray(seconds)) * self._slowdown[ranks]

    def _add_duration(self, durations: list[Duration], rows: int | Rows, ranks: int | Rows, seconds: SecondsOf) -> None:
        """Adds the seconds of tasks to `durations` if they are a function."""
        if callable(seconds):
            durations.append(Duration(np.atleast_1d(rows), np.broadcast_to(ranks, np.shape(np.atleast_1d(rows))), seconds))

    def _path(self, path: PathOf | Paths) -> ArrayLike:
        """The numbers of paths."""
        if isinstance(path, np.ndarray):
            return np.array([self._path(one) for one in path.flat], dtype=np.int64).reshape(path.shape)
        number = self._path_numbers.setdefault(id(path), len(self._paths))
        if number == len(self._paths):
            self._paths.append(path)
        return number

    def _add(self, ranks: Tasks, after: After, **columns: ArrayLike) -> Tasks:
        """Adds a task or a block of tasks of rank classes."""
        if isinstance(ranks, np.ndarray):
            rows = self._add_block(rank=ranks, **columns)
        else:
            rows = self._rows
            self._rows += 1
            self._blocks.append({"rank": ranks, **columns})
            self._block_rows.append(1)
        self._dependencies.add(rows, after)
        return rows

    def _add_block(self, **columns: ArrayLike) -> Rows:
        shape = np.broadcast_shapes(*map(np.shape, columns.values()))
        rows = np.arange(self._rows, self._rows + math.prod(shape)).reshape(shape)
        self._rows += rows.size
        self._blocks.append({name: value for name, value in columns.items() if np.ndim(value) == 0})
        self._block_rows.append(rows.size)
        for name in columns.keys() - self._blocks[-1].keys():
            self._varying[name].append((rows, np.broadcast_to(columns[name], shape)))
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
