"""Published collectives as observations: what NCCL chose, where, and how long it took."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.collective.time import group_on, parse_op
from scaleproof.simulator.cluster.collectives.cost import are_staged
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.constants import Tables, TimingConstants, constants_of, derived
from scaleproof.simulator.cluster.collectives.nccl.timing import Timing, choices, nccl_choice
from scaleproof.simulator.cluster.collectives.settings import Adjust, Nccl
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.validator.collectives import rows as published_rows
from scaleproof.validator.collectives.rows import Row


@dataclass(frozen=True)
class Observation:
    """A collective's measured time. curve: its duration by size with the chosen algorithm and protocol, from constants."""

    row: Row
    system: str
    source: str
    facts: Nccl
    transport: str
    staged: bool
    curve: Callable[[TimingConstants], Timing]
    key: tuple[object, ...]
    size_bytes: float
    measured_s: float
    pytorch: bool


def system_of(row: Row) -> str:
    """Name of the kind of system that a row was measured on: of the shipped cluster, else as the row names it."""
    return published_rows.shipped_name(row) or re.sub(r"\s*\(.*\)|^\d+x\s+", "", row["instance_or_system"])


def observations(rows: Iterable[Row]) -> list[Observation]:
    """The rows that NCCL's timing predicts and that have a time; what NCCL chose is from the shipped constants."""
    found = []
    for row in rows:
        try:
            found.append(_observation(row))
        except (ScaleproofError, ValueError, OverflowError):  # `score` lists them with the reason
            continue
    return [one for one in found if one is not None]


def _observation(row: Row) -> Observation | None:
    size_bytes, ranks = int(float(row["size_bytes"])), int(float(row["n_gpus"]))
    op, algorithm = parse_op(row["collective"]), published_rows.algorithm_of(row)
    measured_s = published_rows.measured_s(row, size_bytes, ranks)
    if not measured_s > 0:
        return None
    cluster, _ = published_rows.cluster_of(row, ranks)
    facts, transport = cluster.nccl_facts, cluster.transport
    assert facts is not None
    links = GroupLinks(group_on(cluster, ranks), cluster.node, cluster.network)

    staged = are_staged(set(links.group.device_of.tolist()), cluster, facts)
    constants = constants_of(facts, transport, Adjust(), staged)
    best = nccl_choice(choices(op, links, facts, constants, algorithm), size_bytes)

    def curve(constants: TimingConstants) -> Timing:
        return replace(best, constants=constants).at(size_bytes)

    is_small = size_bytes <= best.small_bytes
    key = (row["instance_or_system"], op, ranks, row.get("n_nodes"), facts, transport, best.algorithm, best.protocol, is_small)
    pytorch, source = published_rows.is_pytorch(row), published_rows.source_of(row)
    return Observation(row, system_of(row), source, facts, transport, staged, curve, key, size_bytes, measured_s, pytorch)


@dataclass(frozen=True)
class ObservationBatch:
    """Observations in arrays, so that many constants can be tried: curves once for each key.

    index: the curve of each observation; shapes (observations,).
    """

    members: tuple[Observation, ...]
    curves: tuple[Observation, ...]
    index: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    pytorch: NDArray[np.bool_]

    @classmethod
    def of(cls, members: Iterable[Observation]) -> ObservationBatch:
        """The observations as arrays."""
        listed = tuple(members)
        positions: dict[tuple[object, ...], int] = defaultdict(lambda: len(positions))
        index = np.array([positions[one.key] for one in listed], dtype=np.int64)
        first = [int(np.flatnonzero(index == position)[0]) for position in range(len(positions))]
        columns = (np.array([getattr(one, name) for one in listed]) for name in ("size_bytes", "measured_s", "pytorch"))
        return cls(listed, tuple(listed[i] for i in first), index, *columns)

    def seconds(self, tables: Tables) -> NDArray[np.float64]:
        """Predicted seconds with these constants; shape (observations,)."""
        keys = [(one.facts, one.transport, Adjust(), one.staged) for one in self.curves]
        constants = {key: derived(tables, *key) for key in set(keys)}
        timed = np.array([one.curve(constants[key]) for one, key in zip(self.curves, keys, strict=True)])[self.index]
        latency_s, per_byte_s, chunk_s, hosts_s = timed.T
        transfer_s = self.size_bytes * per_byte_s
        called_s = np.where(self.pytorch, tables["libraries"]["nccl"]["pytorch_call"].value, 0.0)
        moved_s = np.maximum(hosts_s, transfer_s + 2 * np.sqrt(chunk_s * transfer_s))
        result: NDArray[np.float64] = latency_s + moved_s + called_s
        return result
