"""Program: what a strategy compiles to and an engine times. Columns, not objects.

One training step as a table of tasks, repeated step after step. A task runs when every task it depends on has ended and the
task before it in its lane has ended, the last of the previous step included. Alike ranks are folded into one rank class when
the program is built; what they share is told by how often a task uses a resource.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_LANE: Final = -1
MAIN_LANE: Final = 0
COLLECTIVE_LANE: Final = 1


class Kind(IntEnum):
    """COMPUTE holds a rank's main lane for `amount` seconds of work (zero work: the rank only waits).
    TRANSFER moves `amount` bytes from `rank` to `peer`. COLLECTIVE moves `amount` bytes through each of its members.
    SERVE queues at server `rank`, see `Serves`."""

    COMPUTE = 0
    TRANSFER = 1
    COLLECTIVE = 2
    SERVE = 3


@dataclass(frozen=True)
class Ragged:
    """Lists of different lengths: list i is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in lists], out=offsets[1:])
        return cls(offsets, np.fromiter((value for one in lists for value in one), dtype=np.int64, count=int(offsets[-1])))

    def lists(self) -> list[list[int]]:
        """All lists, as plain numbers."""
        offsets, values = self.offsets.tolist(), self.values.tolist()
        return [values[a:b] for a, b in itertools.pairwise(offsets)]


class Use(NamedTuple):
    """A task uses `per_unit` of a resource's capacity for each unit of its own rate (alike ranks count as many)."""

    resource: int
    per_unit: float = 1.0


def followers(follows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The reverse of what each task follows: for each task the tasks that follow it."""
    result: list[list[int]] = [[] for _ in follows]
    for task, before in enumerate(follows):
        for previous in before:
            result[previous].append(task)
    return result


@dataclass(frozen=True)
class RankClasses:
    """Ranks that do the same are one class. names, multiplicity (how many ranks), is_server: one entry per class."""

    names: tuple[str, ...]
    multiplicity: NDArray[np.int64]
    is_server: NDArray[np.bool_]


@dataclass(frozen=True)
class Resources:
    """What tasks share: names, and capacity in units of rate (cores, bytes per second).

    incast: how much of its capacity a resource loses for each user beyond the first: capacity / (1 + incast · (users − 1)),
    where users is the sum of what its activities use per unit of their rates (folded alike ranks count as many).
    """

    names: tuple[str, ...]
    capacity: NDArray[np.float64]
    incast: NDArray[np.float64]


@dataclass(frozen=True)
class Program:
    """T tasks in T-long columns.

    kind: Kind. rank: class that owns the task. peer: receiving class of a TRANSFER, else −1. lane: tasks of one rank and lane
    run in row order; NO_LANE for tasks that wait for their dependencies alone. phase, stage, microbatch: labels for spans.
    latency_s: passes before anything is used. amount: seconds of work, or bytes. max_rate: work seconds per second (1), or
    bytes per second. weight: share under contention relative to others. requests, update_s: of SERVE tasks only: how many
    requests the task stands for, each `amount` seconds, and the seconds of the update once all have come.
    dependencies: rows that must have ended. carried: rows of the step before that must have ended, beside what lanes say.
    members: classes that take part in a COLLECTIVE.
    use_offsets, use_resource, use_per_unit: resources each task uses, as Ragged has it.
    """

    ranks: RankClasses
    resources: Resources
    kind: NDArray[np.int8]
    rank: NDArray[np.int32]
    peer: NDArray[np.int32]
    lane: NDArray[np.int8]
    phase: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    latency_s: NDArray[np.float64]
    amount: NDArray[np.float64]
    max_rate: NDArray[np.float64]
    weight: NDArray[np.float64]
    requests: NDArray[np.int32]
    update_s: NDArray[np.float64]
    dependencies: Ragged
    carried: Ragged
    members: Ragged
    use_offsets: NDArray[np.int64]
    use_resource: NDArray[np.int64]
    use_per_unit: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def has_servers(self) -> bool:
        return bool((self.kind == Kind.SERVE).any())

    def follows(self) -> list[list[int]]:
        """For each task the tasks of its step that it follows: its dependencies, and the one before it in its lane."""
        result = self.dependencies.lists()
        for lane in self.lanes():
            for previous, task in itertools.pairwise(lane):
                result[task].append(previous)
        return result

    def carried_with_lanes(self) -> list[list[int]]:
        """For each task the tasks of the step before that it follows: those carried, and for a lane's first task its last."""
        result = self.carried.lists()
        for tasks in self.lanes():
            result[tasks[0]].append(tasks[-1])
        return result

    def lanes(self) -> list[list[int]]:
        """The tasks of each lane, in order."""
        result: dict[tuple[int, int], list[int]] = {}
        for task, key in enumerate(zip(self.rank.tolist(), self.lane.tolist(), strict=True)):
            if key[1] != NO_LANE:
                result.setdefault(key, []).append(task)
        return list(result.values())

    def uses(self) -> list[list[Use]]:
        """What each task uses."""
        flat = list(map(Use, self.use_resource.tolist(), self.use_per_unit.tolist()))
        return [flat[a:b] for a, b in itertools.pairwise(self.use_offsets.tolist())]


@dataclass(frozen=True)
class Path:
    """How bytes move: the latency before the first, the rate of one message alone, and what it uses while it moves."""

    latency_s: float
    max_Bps: float
    uses: tuple[Use, ...] = ()
    weight: float = 1.0


# the columns of a builder's row, in order
_ROW: Final[dict[str, type]] = {
    "kind": np.int8,
    "rank": np.int32,
    "peer": np.int32,
    "lane": np.int8,
    "phase": np.int8,
    "stage": np.int32,
    "microbatch": np.int32,
    "latency_s": np.float64,
    "amount": np.float64,
    "max_rate": np.float64,
    "weight": np.float64,
    "requests": np.int32,
    "update_s": np.float64,
}


class ProgramBuilder:
    """Collects tasks row by row; `build` makes the columns. Every method that adds a task returns its row number."""

    def __init__(self) -> None:
        self._rank_names: list[str] = []
        self._multiplicity: list[int] = []
        self._is_server: list[bool] = []
        self._resource_names: list[str] = []
        self._capacity: list[float] = []
        self._incast: list[float] = []
        self._rank_uses: list[tuple[Use, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._dependencies: list[Sequence[int]] = []
        self._carried: dict[int, Sequence[int]] = {}
        self._members: list[Sequence[int]] = []
        self._uses: list[tuple[Use, ...]] = []

    def resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        """Adds a shared resource; returns its number."""
        self._resource_names.append(name)
        self._capacity.append(capacity)
        self._incast.append(incast)
        return len(self._capacity) - 1

    def rank(self, name: str, *, multiplicity: int = 1, is_server: bool = False, uses: tuple[Use, ...] = ()) -> int:
        """Adds a class of `multiplicity` alike ranks that compute on `uses` (nothing shared: none); returns its number."""
        self._rank_names.append(name)
        self._multiplicity.append(multiplicity)
        self._is_server.append(is_server)
        self._rank_uses.append(uses)
        return len(self._rank_names) - 1

    def compute(
        self, rank: int, phase: int, work_s: float, after: Sequence[int] = (), stage: int = -1, microbatch: int = -1
    ) -> int:
        """`work_s` seconds of compute on the rank's main lane, once the tasks `after` have ended."""
        row = (Kind.COMPUTE, rank, -1, MAIN_LANE, phase, stage, microbatch, 0.0, work_s, 1.0, 1.0, 0, 0.0)
        return self._add(row, after, (), self._rank_uses[rank] if work_s > 0 else ())

    def wait(self, rank: int, phase: int, after: Sequence[int], stage: int = -1, microbatch: int = -1) -> int:
        """Holds the rank's main lane until the tasks `after` have ended; the wait is labelled `phase`."""
        return self.compute(rank, phase, 0.0, after, stage, microbatch)

    def transfer(
        self, source: int, target: int, size_bytes: float, path: Path, phase: int, after: Sequence[int],
        stage: int = -1, microbatch: int = -1,
    ) -> int:  # fmt: skip
        """Moves `size_bytes` from one class to another along `path`."""
        row = (
            Kind.TRANSFER, source, target, NO_LANE, phase, stage, microbatch,
            path.latency_s, size_bytes, path.max_Bps, path.weight, 0, 0.0,
        )  # fmt: skip
        return self._add(row, after, (), path.uses if size_bytes > 0 else ())

    def collective(
        self, members: Sequence[int], size_bytes: float, path: Path, phase: int, after: Sequence[int], stage: int = -1
    ) -> int:
        """A collective that moves `size_bytes` through each member; collectives of one group follow one another."""
        row = (
            Kind.COLLECTIVE, members[0], -1, COLLECTIVE_LANE, phase, stage, -1,
            path.latency_s, size_bytes, path.max_Bps, path.weight, 0, 0.0,
        )  # fmt: skip
        return self._add(row, after, members, path.uses if size_bytes > 0 else ())

    def serve(
        self, server: int, worker: int, phase: int, requests: int, service_s: float, update_s: float, after: Sequence[int]
    ) -> int:
        """`requests` alike requests of a worker class, queued at a server once the tasks `after` have ended.

        Each is served for `service_s` in order of arrival; all end together, once everything that this step brings to the
        server has been served and the update, `update_s`, is done.
        """
        row = (Kind.SERVE, server, worker, NO_LANE, phase, -1, -1, 0.0, service_s, 1.0, 1.0, requests, update_s)
        return self._add(row, after, (), self._rank_uses[server])

    def carry(self, task: int, after: Sequence[int]) -> None:
        """Makes a task wait for tasks of the step before as well."""
        self._carried[task] = after

    def _add(self, row: tuple[Any, ...], after: Sequence[int], members: Sequence[int], uses: tuple[Use, ...]) -> int:
        self._rows.append(row)
        self._dependencies.append(after)
        self._members.append(members)
        self._uses.append(uses)
        return len(self._rows) - 1

    def build(self) -> Program:
        """The columns."""
        columns = zip(*self._rows, strict=True)
        labels: dict[str, NDArray[Any]] = {
            name: np.array(values, dtype=kind) for (name, kind), values in zip(_ROW.items(), columns, strict=True)
        }
        offsets = np.concatenate([[0], np.cumsum([len(u) for u in self._uses])]).astype(np.int64)
        flat = [use for uses in self._uses for use in uses]
        return Program(
            RankClasses(tuple(self._rank_names), np.array(self._multiplicity, dtype=np.int64), np.array(self._is_server)),
            Resources(
                tuple(self._resource_names),
                np.array(self._capacity, dtype=np.float64),
                np.array(self._incast, dtype=np.float64),
            ),
            **labels,
            dependencies=Ragged.of(self._dependencies),
            carried=Ragged.of([self._carried.get(task, ()) for task in range(len(self._rows))]),
            members=Ragged.of(self._members),
            use_offsets=offsets,
            use_resource=np.array([u.resource for u in flat], dtype=np.int64),
            use_per_unit=np.array([u.per_unit for u in flat], dtype=np.float64),
        )
