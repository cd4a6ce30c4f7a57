"""Builder: collects the tasks of a program, one by one or in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.common.batched import numbers, put
from scaleproof.simulator.common.csr import Ragged
from scaleproof.simulator.program.consistency import SYNCHRONOUS, Gate, WorkQuota
from scaleproof.simulator.program.resources import Resources, Routes, Rows, Use
from scaleproof.simulator.program.speed_profile import Pace
from scaleproof.simulator.program.table import COLLECTIVE_LANE, MAIN_LANE, NO_LANE, Kind, Program, RankClasses


@dataclass(frozen=True)
class Path:
    """How bytes move: the latency before the first, the rate of one message alone, and what it uses while it moves."""

    latency_s: float
    max_Bps: float
    uses: tuple[Use, ...] = ()
    weight: float = 1.0


# the columns of a builder's row: type, and what a row has that does not say
_COLUMNS: Final[dict[str, tuple[type, float]]] = {
    "kind": (np.int8, Kind.COMPUTE),
    "rank": (np.int32, -1),
    "peer": (np.int32, -1),
    "lane": (np.int8, NO_LANE),
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
    "told_after": (np.int32, -1),
}


class _Pairs:
    """Lists by row, collected in any order: whole lists of single rows, and arrays of (row, value) pairs."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._lists: list[Sequence[int]] = []
        self._pairs: list[tuple[Rows, Rows]] = []

    def add(self, row: int, values: Sequence[int]) -> None:
        self._rows.append(row)
        self._lists.append(values)

    def add_pairs(self, rows: ArrayLike, values: ArrayLike) -> None:
        """Pairs that broadcast together; a value below zero is none."""
        row, value = np.broadcast_arrays(rows, values)
        given = value >= 0
        self._pairs.append((row[given], value[given]))

    def ragged(self, rows: int) -> Ragged:
        """The values of each of `rows` rows."""
        lists = Ragged.of(self._lists)
        keys = np.repeat(np.array(self._rows, dtype=np.int64), lists.counts)
        keys = np.concatenate([keys, *(row for row, _ in self._pairs)])
        values = np.concatenate([lists.values, *(value for _, value in self._pairs)])
        return Ragged.grouped(keys, values, rows)


class ProgramBuilder:
    """Collects tasks; `build` makes the columns. What adds one task returns its row number, what adds a block of them their
    row numbers, in the shape to which its arguments broadcast. gate, units: as a Program has them."""

    def __init__(self, gate: Gate = SYNCHRONOUS, units: WorkQuota | None = None) -> None:
        self._gate = gate
        self._units = units
        self._rank_names: list[str] = []
        self._multiplicity: list[int] = []
        self._is_server: list[bool] = []
        self._late_s: list[float] = []
        self._lockstep: list[int] = []
        self._paces: list[tuple[Pace, ...]] = []
        self._slowdown: list[float] = []
        self._rank_routes: list[int] = []
        self._resource_names: list[str] = []
        self._capacity: list[float] = []
        self._incast: list[float] = []
        self._routes: dict[tuple[Use, ...], int] = {(): 0}
        self._rows = 0
        # a block is one row so many times over, and its columns that differ from row to row
        self._blocks: list[dict[str, Any]] = []
        self._block_rows: list[int] = []
        self._differing: dict[str, list[tuple[Rows, NDArray[Any]]]] = {name: [] for name in _COLUMNS}
        self._dependencies = _Pairs()
        self._carried = _Pairs()
        self._members = _Pairs()

    def resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        """Adds a shared resource; returns its number."""
        self._resource_names.append(name)
        self._capacity.append(capacity)
        self._incast.append(incast)
        return len(self._capacity) - 1

    def rank(
        self, name: str, *, multiplicity: int = 1, is_server: bool = False, uses: tuple[Use, ...] = (),
        slowdown: float = 1.0, late_s: float = 0.0, lockstep: int = 1, paces: tuple[Pace, ...] = (),
    ) -> int:  # fmt: skip
        """Adds a class of `multiplicity` alike ranks that compute on `uses` (nothing shared: none); returns its number.

        slowdown: how many times as long as said their work takes. late_s: when they begin their first step. lockstep: how many
        of them share each pass. paces: how fast those of them work as time passes; they are steady, if absent.
        """
        self._rank_names.append(name)
        self._multiplicity.append(multiplicity)
        self._is_server.append(is_server)
        self._late_s.append(late_s)
        self._lockstep.append(lockstep)
        self._paces.append(paces)
        self._slowdown.append(slowdown)
        self._rank_routes.append(self._route(uses))
        return len(self._rank_names) - 1

    def compute(
        self, rank: int, phase: int, work_s: float, after: Sequence[int] = (), stage: int = -1, microbatch: int = -1
    ) -> int:
        """`work_s` seconds of compute on the rank's main lane, once the tasks `after` have ended."""
        return self._add(
            after, rank=rank, lane=MAIN_LANE, phase=phase, stage=stage, microbatch=microbatch,
            amount=work_s * self._slowdown[rank], route=self._rank_routes[rank] if work_s > 0 else 0,
        )  # fmt: skip

    def computes(
        self, rank: ArrayLike, phase: ArrayLike, work_s: ArrayLike, after: Sequence[ArrayLike] = (),
        stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1, exchange_s: ArrayLike = 0.0,
    ) -> Rows:  # fmt: skip
        """A block of `compute`. after: arrays of rows (below zero: none), each task follows its element of each.

        exchange_s: what its ranks exchange with one another within it.
        """
        return self._add_block(
            after, rank=rank, lane=MAIN_LANE, phase=phase, stage=stage, microbatch=microbatch, slot=slot,
            latency_s=exchange_s, **self.computing(rank, work_s),
        )  # fmt: skip

    def computing(self, rank: ArrayLike, work_s: ArrayLike) -> dict[str, NDArray[Any]]:
        """The columns of what computes for so long on rank classes."""
        route = np.where(np.asarray(work_s) > 0, np.array(self._rank_routes)[np.asarray(rank)], 0)
        return {"amount": np.asarray(work_s) * np.array(self._slowdown)[np.asarray(rank)], "route": route}

    def beside(self, rank: int, amount: float, path: Path, phase: int, after: Sequence[int] = ()) -> int:
        """Something of a rank's that takes no lane of it: `amount`, in the unit of the path's rates, along `path`."""
        return self._add(after, rank=rank, phase=phase, **self.along(path, amount))

    def wait(self, rank: int, phase: int, after: Sequence[int], stage: int = -1, microbatch: int = -1) -> int:
        """Holds the rank's main lane until the tasks `after` have ended; the wait is labelled `phase`."""
        return self.compute(rank, phase, 0.0, after, stage, microbatch)

    def transfer(
        self, source: int, target: int, size_bytes: float, path: Path, phase: int, after: Sequence[int],
        stage: int = -1, microbatch: int = -1, together: int = -1,
    ) -> int:  # fmt: skip
        """Moves `size_bytes` from one class to another along `path`."""
        return self._add(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            together=together, **self.along(path, size_bytes),
        )  # fmt: skip

    def transfers(
        self, source: ArrayLike, target: ArrayLike, sizes_bytes: Sequence[float], paths: Sequence[Path], which: Rows,
        phase: int, after: Sequence[ArrayLike], stage: ArrayLike = -1, microbatch: ArrayLike = -1, slot: ArrayLike = -1,
    ) -> Rows:  # fmt: skip
        """A block of `transfer`, each of the size and along the path of number `which`. after: as `computes` has it."""
        along = self._alongs(zip(sizes_bytes, paths, strict=True), which)
        return self._add_block(
            after, kind=Kind.TRANSFER, rank=source, peer=target, phase=phase, stage=stage, microbatch=microbatch,
            slot=slot, **along,
        )  # fmt: skip

    def collective(
        self, members: Sequence[int], size_bytes: float, path: Path, phase: int, after: Sequence[int], stage: int = -1,
        microbatch: int = -1, slot: int = -1,
    ) -> int:  # fmt: skip
        """A collective that moves `size_bytes` through each member; collectives of one group follow one another."""
        self._members.add(self._rows, members)
        return self._add(
            after, kind=Kind.COLLECTIVE, rank=members[0], lane=COLLECTIVE_LANE, phase=phase, stage=stage,
            microbatch=microbatch, slot=slot, **self.along(path, size_bytes),
        )  # fmt: skip

    def collectives(
        self, members: Sequence[int], moved: Sequence[tuple[float, Path]], which: Rows, phase: int, after: ArrayLike,
        stage: int = -1, slot: ArrayLike = -1,
    ) -> Rows:  # fmt: skip
        """A block of `collective` of the same members, each of that size and path of `moved` that has the number `which`.
        after: rows, shape (collectives, followed by each)."""
        rows = self._add_block(
            (), kind=Kind.COLLECTIVE, rank=members[0], lane=COLLECTIVE_LANE, phase=phase, stage=stage, slot=slot,
            **self._alongs(moved, which),
        )  # fmt: skip
        self._members.add_pairs(rows[:, None], members)
        self.follow(rows[:, None], after)
        return rows

    def serve(
        self, server: int, worker: int, phase: int, requests: int, service_s: float, update_s: float, after: Sequence[int],
        bucket: int = 0,
    ) -> int:  # fmt: skip
        """`requests` alike requests of a worker class, queued at a server once the tasks `after` have ended.

        Each is served for `service_s` in order of arrival; they end when the gate answers them. With a barrier that is once
        what this step brings to the server for the bucket has been served and the update, `update_s`, is done.
        """
        slowdown = self._slowdown[server]
        return self._add(
            after, kind=Kind.SERVE, rank=server, peer=worker, phase=phase, requests=requests,
            amount=service_s * slowdown, update_s=update_s * slowdown, bucket=bucket, route=self._rank_routes[server],
        )  # fmt: skip

    def follow(self, rows: ArrayLike, after: ArrayLike) -> None:
        """Makes each task of `rows` wait for its element of `after` as well (below zero: none); they broadcast together."""
        self._dependencies.add_pairs(rows, after)

    def pair(self, rows: Rows, partners: Rows) -> None:
        """Makes transfers partners of one another."""
        self._differing["partner"] += [(rows, partners), (partners, rows)]

    def tell(self, rows: Rows, told_after: Rows, behind: Rows) -> None:
        """Makes transfers wait for their receivers' word, which may be queued; see `Program`."""
        self._differing["told_after"].append((rows, told_after))
        self._differing["behind"].append((rows, behind))

    def carry(self, task: int, after: Sequence[int]) -> None:
        """Makes a task wait for tasks of the step before as well."""
        self._carried.add(task, after)

    def _route(self, uses: tuple[Use, ...]) -> int:
        return self._routes.setdefault(uses, len(self._routes))

    def along(self, path: Path, size_bytes: float) -> dict[str, float]:
        """The columns of so much that moves along a path."""
        return {
            "latency_s": path.latency_s,
            "amount": size_bytes,
            "max_rate": path.max_Bps,
            "weight": path.weight,
            "route": self._route(path.uses) if size_bytes > 0 else 0,
        }

    def _alongs(self, moved: Iterable[tuple[float, Path]], which: Rows) -> dict[str, NDArray[Any]]:
        """The columns of tasks each of which moves so much along such a path as has the number `which`."""
        kinds = [self.along(path, size_bytes) for size_bytes, path in moved]
        return {name: np.array([kind[name] for kind in kinds])[which] for name in kinds[0]}

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
            self._differing[name].append((rows, np.broadcast_to(columns[name], shape)))
        for previous in after:
            self.follow(rows, previous)
        return rows

    def _column(self, name: str) -> NDArray[Any]:
        dtype, default = _COLUMNS[name]
        values = numbers([block.get(name, default) for block in self._blocks], dtype)
        column: NDArray[Any] = np.repeat(values, self._block_rows, axis=0)
        for rows, differing in self._differing[name]:
            column = put(column, rows, differing)
        return column

    def build(self) -> Program:
        """The columns."""
        columns: dict[str, Any] = {name: self._column(name) for name in _COLUMNS}
        return Program(
            RankClasses(
                tuple(self._rank_names),
                np.array(self._multiplicity, dtype=np.int64),
                np.array(self._is_server),
                np.array(self._late_s, dtype=np.float64),
                np.array(self._lockstep, dtype=np.int64),
                tuple(self._paces),
            ),
            Resources(
                tuple(self._resource_names),
                numbers(self._capacity, np.float64),
                np.array(self._incast, dtype=np.float64),
            ),
            Routes.of(list(self._routes)),
            **columns,
            dependencies=self._dependencies.ragged(self._rows),
            carried=self._carried.ragged(self._rows),
            members=self._members.ragged(self._rows),
            gate=self._gate,
            units=self._units,
        )
