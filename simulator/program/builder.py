"""Program builder: adds tasks one by one or in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.batched_numbers import numbers, put
from scaleproof.simulator.common.communication import UNKNOWN, UNLABELLED, Communication
from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.program.consistency import SYNCHRONOUS, ConsistencyModel, WorkQuota
from scaleproof.simulator.program.pass_communication import PassCommunication
from scaleproof.simulator.program.resources import Resources, Routes, Rows, Use
from scaleproof.simulator.program.speed_profile import Pace
from scaleproof.simulator.program.table import COLLECTIVE_STREAM, MAIN_STREAM, NO_STREAM, Kind, Program, RankClasses


@dataclass(frozen=True)
class Path:
    """Path of a transfer: latency, maximum rate of a single message, resources used meanwhile, and weight under contention."""

    latency_s: float
    max_Bps: float
    uses: tuple[Use, ...] = ()
    weight: float = 1.0


# Columns of a row: type and default value.
_COLUMNS: Final[dict[str, tuple[type, float]]] = {
    "kind": (np.int8, Kind.COMPUTE),
    "rank": (np.int32, -1),
    "peer": (np.int32, -1),
    "stream": (np.int8, NO_STREAM),
    "phase": (np.int8, -1),
    "stage": (np.int32, -1),
    "microbatch": (np.int32, -1),
    "latency_s": (np.float64, 0.0),
    "amount": (np.float64, 0.0),
    "max_rate": (np.float64, 1.0),
    "weight": (np.float64, 1.0),
    "requests": (np.int32, 0),
    "update_s": (np.float64, 0.0),
    "bucket": (np.int32, 0),
    "route": (np.int32, 0),
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
    arguments broadcast. consistency: consistency model of the servers; units: as in `Program`.
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
        self._rank_routes: list[int] = []
        self._resource_names: list[str] = []
        self._capacity: list[float] = []
        self._incast: list[float] = []
        self._routes: dict[tuple[Use, ...], int] = {(): 0}
        self._rows = 0
        # a block repeats one row; columns that vary from row to row are collected in _varying
        self._blocks: list[dict[str, Any]] = []
        self._block_rows: list[int] = []
        self._varying: dict[str, list[tuple[Rows, NDArray[Any]]]] = {name: [] for name in _COLUMNS}
        self._dependencies = _Pairs()
        self._carried = _Pairs()
        self._members = _Pairs()

    def resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        """Adds a shared resource and returns its number."""
        self._resource_names.append(name)
        self._capacity.append(capacity)
        self._incast.append(incast)
        return len(self._capacity) - 1

    def rank(
        self, name: str, *, multiplicity: int = 1, is_server: bool = False, uses: tuple[Use, ...] = (),
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
        self._rank_routes.append(self._route(uses))
        return len(self._rank_names) - 1

    def compute(
        self, rank: int, phase: int, work_s: float, after: Sequence[int] = (), stage: int = -1, microbatch: int = -1,
        stream: int = MAIN_STREAM,
    ) -> int:  # fmt: skip
        """Adds `work_s` seconds of compute on a stream of the rank, its main stream by default, after the tasks `after`."""
        return self._add(
            after, rank=rank, stream=stream, phase=phase, stage=stage, microbatch=microbatch,
            amount=work_s * self._slowdown[rank], route=self._rank_routes[rank] if work_s > 0 else 0,
        )  # fmt: skip

    def computes(
        self, rank: ArrayLike, phase: ArrayLike, work_s: ArrayLike, after: Sequence[ArrayLike] = (),
        stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1, exchange_s: ArrayLike = 0.0,
        first_layer: ArrayLike = UNKNOWN, last_layer: ArrayLike = UNKNOWN,
    ) -> Rows:  # fmt: skip
        """Adds a block of `compute` tasks.

        after: arrays of rows (below zero: none); each task follows its element of each array. exchange_s: exposed seconds of
        collectives of the model-parallel group within each task. first_layer, last_layer: layers that each task passes, unknown
        for tasks without such collectives.
        """
        return self._add_block(
            after, rank=rank, stream=MAIN_STREAM, phase=phase, stage=stage, microbatch=microbatch, slot=slot,
            latency_s=exchange_s, first_layer=first_layer, last_layer=last_layer, **self.compute_columns(rank, work_s),
        )  # fmt: skip

    def compute_columns(self, rank: ArrayLike, work_s: ArrayLike) -> dict[str, NDArray[Any]]:
        """Columns of tasks that compute for `work_s` seconds on rank classes."""
        route = np.where(np.asarray(work_s) > 0, np.array(self._rank_routes)[np.asarray(rank)], 0)
        return {"amount": np.asarray(work_s) * np.array(self._slowdown)[np.asarray(rank)], "route": route}

    def background(self, rank: int, amount: float, path: Path, phase: int, after: Sequence[int] = ()) -> int:
        """Adds a background task of a rank that occupies none of its streams: `amount`, in the unit of the path's rates, along
        `path`."""
        return self._add(after, rank=rank, phase=phase, **self.path_columns(path, amount))

    def wait(self, rank: int, phase: int, after: Sequence[int], stage: int = -1, microbatch: int = -1) -> int:
        """Blocks the rank's main stream until the tasks `after` have ended; the wait is labelled `phase`."""
        return self.compute(rank, phase, 0.0, after, stage, microbatch)

    def transfer(
        self, source: int, target: int, size_bytes: float, path: Path, phase: int, after: Sequence[int],
        stage: int = -1, microbatch: int = -1, together: int = -1, labels: Communication = UNLABELLED,
    ) -> int:  # fmt: skip
        """Adds a transfer of `size_bytes` from one class to another along `path`."""
        return self._add(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            together=together, **self.path_columns(path, size_bytes), **labels._asdict(),
        )  # fmt: skip

    def transfers(
        self, source: ArrayLike, target: ArrayLike, sizes_bytes: Sequence[float], paths: Sequence[Path], index: Rows,
        phase: int, after: Sequence[ArrayLike], stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1,
        labels: Communication = UNLABELLED,
    ) -> Rows:  # fmt: skip
        """Adds a block of `transfer` tasks. index: which of `sizes_bytes` and `paths` each task has. after: as in
        `computes`."""
        path_columns = self._columns_of_paths(zip(sizes_bytes, paths, strict=True), index)
        return self._add_block(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            slot=slot, **path_columns, **labels._asdict(),
        )  # fmt: skip

    def collective(
        self, members: Sequence[int], size_bytes: float, path: Path, phase: int, after: Sequence[int], stage: int = -1,
        microbatch: int = -1, slot: int = -1, labels: Communication = UNLABELLED, stream: int = COLLECTIVE_STREAM,
    ) -> int:  # fmt: skip
        """Adds a collective that moves `size_bytes` through each member. Collectives on one stream of the first member run one
        after another."""
        self._members.add(self._rows, members)
        return self._add(
            after, kind=Kind.COLLECTIVE, rank=members[0], stream=stream, phase=phase, stage=stage,
            microbatch=microbatch, slot=slot, **self.path_columns(path, size_bytes), **labels._asdict(),
        )  # fmt: skip

    def collectives(
        self, members: Sequence[int], sizes_and_paths: Sequence[tuple[float, Path]], index: Rows, phase: int, after: ArrayLike,
        stage: int = -1, slot: ArrayLike = -1, labels: Communication = UNLABELLED,
    ) -> Rows:  # fmt: skip
        """Adds a block of `collective` tasks of the same members.

        index: which of `sizes_and_paths` each task has. after: rows, shape (collectives, predecessors of each).
        """
        rows = self._add_block(
            (), kind=Kind.COLLECTIVE, rank=members[0], stream=COLLECTIVE_STREAM, phase=phase, stage=stage, slot=slot,
            **self._columns_of_paths(sizes_and_paths, index), **labels._asdict(),
        )  # fmt: skip
        self._members.add_pairs(rows[:, None], members)
        self.follow(rows[:, None], after)
        return rows

    def serve(
        self, server: int, worker: int, phase: int, requests: int, service_s: float, update_s: float, after: Sequence[int],
        bucket: int = 0,
    ) -> int:  # fmt: skip
        """Adds `requests` equivalent requests of a worker class that are queued at a server after the tasks `after`.

        Each is served for `service_s` seconds in order of arrival. They end when the consistency model allows a reply; with BSP
        that is once all requests of this step for the bucket have been served and the update of `update_s` seconds is done.
        """
        slowdown = self._slowdown[server]
        return self._add(
            after, kind=Kind.SERVE, rank=server, peer=worker, phase=phase, requests=requests,
            amount=service_s * slowdown, update_s=update_s * slowdown, bucket=bucket, route=self._rank_routes[server],
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

    def _route(self, uses: tuple[Use, ...]) -> int:
        return self._routes.setdefault(uses, len(self._routes))

    def path_columns(self, path: Path, size_bytes: float) -> dict[str, float]:
        """Columns of a task that moves `size_bytes` along a path."""
        return {
            "latency_s": path.latency_s,
            "amount": size_bytes,
            "max_rate": path.max_Bps,
            "weight": path.weight,
            "route": self._route(path.uses) if size_bytes > 0 else 0,
        }

    def _columns_of_paths(self, sizes_and_paths: Iterable[tuple[float, Path]], index: Rows) -> dict[str, NDArray[Any]]:
        """Columns of tasks, each with the size and path at its `index`."""
        kinds = [self.path_columns(path, size_bytes) for size_bytes, path in sizes_and_paths]
        return {name: np.array([kind[name] for kind in kinds])[index] for name in kinds[0]}

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
        values = numbers([block.get(name, default) for block in self._blocks], dtype)
        column: NDArray[Any] = np.repeat(values, self._block_rows, axis=0)
        for rows, row_values in self._varying[name]:
            column = put(column, rows, row_values)
        return column

    def build(self, in_passes: Callable[[], PassCommunication] | None = None) -> Program:
        """The program with all tasks added so far. in_passes: as in `Program`."""
        columns: dict[str, Any] = {name: self._column(name) for name in _COLUMNS}
        return Program(
            RankClasses(
                tuple(self._rank_names),
                np.array(self._multiplicity, dtype=np.int64),
                np.array(self._is_server),
                np.array(self._late_s, dtype=np.float64),
                np.array(self._model_parallel_size, dtype=np.int64),
                tuple(self._paces),
            ),
            Resources(
                tuple(self._resource_names),
                numbers(self._capacity, np.float64),
                np.array(self._incast, dtype=np.float64),
            ),
            Routes.of(list(self._routes)),
            **columns,
            dependencies=self._dependencies.csr(self._rows),
            carried=self._carried.csr(self._rows),
            members=self._members.csr(self._rows),
            consistency=self._consistency,
            units=self._units,
            in_passes=in_passes,
        )
