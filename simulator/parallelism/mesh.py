"""Device mesh: ranks by their coordinates on the axes of parallelism, the groups that they form, and classes of equivalent
ranks on nodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.model.operators import Axis as PassAxis

Axis = Literal["tensor", "context", "workers", "stages"]
# Innermost first: neighbouring ranks exchange the most (Megatron-LM's order, arXiv 2104.04473, section 3).
ORDER: Final[tuple[Axis, ...]] = ("tensor", "context", "workers", "stages")


def _with_each_axis(order: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The order, if it lists each axis once."""
    if sorted(order) != sorted(ORDER):
        raise ValueError(f"must list each of {', '.join(ORDER)} once, innermost first")
    return order


AxisOrder = Annotated[tuple[Axis, ...], AfterValidator(_with_each_axis)]


@dataclass(frozen=True)
class DeviceMesh:
    """Ranks are numbered along the axes of `order`, innermost first; `devices` of them fill a node.

    device_numbers: of the ranks, `devices` to a node, if some nodes have fewer devices; empty if all have them.
    expert: number of ranks with different experts. expert_tensor: tensor-parallel ranks that divide matrices of experts; the
    others, context ranks and workers then all have different experts, innermost in the mesh's order first (parallel folding,
    arXiv 2504.14960). If None, all tensor-parallel ranks divide matrices, and only workers have different experts.
    """

    workers: int
    stages: int
    tensor: int
    context: int
    devices: int
    order: tuple[Axis, ...] = ORDER
    expert: int = 1
    expert_tensor: int | None = None
    device_numbers: tuple[int, ...] = ()

    @property
    def model_parallel_size(self) -> int:
        """Number of ranks that share every layer of a stage (the model-parallel group)."""
        return self.tensor * self.context

    @property
    def expert_shards(self) -> int:
        """Number of tensor-parallel ranks that divide each expert's matrices."""
        return self.expert_tensor or self.tensor

    @property
    def nodes(self) -> int:
        """Number of nodes that the ranks occupy."""
        return int(self.device_of(self.workers * self.stages * self.model_parallel_size - 1)) // self.devices + 1

    def device_of(self, ranks: Any) -> Any:
        """Numbers of the devices of ranks."""
        return np.array(self.device_numbers)[ranks] if self.device_numbers else ranks

    def group(self, ranks: Sequence[int]) -> Group:
        """The group of some ranks."""
        return Group.of(self.device_of(list(ranks)).tolist() if self.device_numbers else ranks, self.devices)

    def stride(self, axis: Axis) -> int:
        """Distance between the numbers of neighbouring ranks along an axis."""
        return self._strides[axis]

    @cached_property
    def _strides(self) -> dict[Axis, int]:
        sizes: dict[Axis, int] = {
            "tensor": self.tensor, "context": self.context, "workers": self.workers, "stages": self.stages,
        }  # fmt: skip
        return {axis: math.prod(sizes[inner] for inner in self.order[:number]) for number, axis in enumerate(self.order)}

    def rank(self, worker: int, stage: int) -> int:
        """The first of the ranks with a stage of a worker."""
        return worker * self.stride("workers") + stage * self.stride("stages")

    def members(self, worker: int, stage: int) -> list[int]:
        """All ranks with a stage of a worker."""
        first = self.rank(worker, stage)
        context_stride, tensor_stride = self.stride("context"), self.stride("tensor")
        return [first + c * context_stride + t * tensor_stride for c in range(self.context) for t in range(self.tensor)]

    def place(self, worker: int, stage: int) -> tuple[int, int]:
        """Node and device of the first rank with a stage of a worker."""
        return divmod(int(self.device_of(self.rank(worker, stage))), self.devices)

    def kinds_on(self, cluster: Cluster) -> NDArray[np.int64]:
        """Kind of the node of the first rank with each stage of each worker, on a cluster, shape (workers, stages)."""
        ranks = self.stride("workers") * np.arange(self.workers)[:, None] + self.stride("stages") * np.arange(self.stages)
        nodes = self.device_of(ranks) // self.devices
        kinds: NDArray[np.int64] = np.array([cluster.kind_of(node) for node in range(self.nodes)])[nodes]
        return kinds

    def replicas_of(self, stage: int, first: int = 0, count: int | None = None) -> Group:
        """The ranks with the same parameters as rank (0, stage): those of workers `first`, `first` + 1, … and of all context
        ranks.

        count: number of workers; all from `first` on if None.
        """
        last = self.workers if count is None else first + count
        context_stride = self.stride("context")
        starts = range(self.rank(first, stage), self.rank(last, stage), self.stride("workers"))
        ranks = starts if self.context == 1 else [start + c * context_stride for start in starts for c in range(self.context)]
        return self.group(ranks)

    @lru_cache(maxsize=64)  # noqa: B019 (meshes are small and few)
    def along(self, axis: Axis, size: int) -> Group:
        """A group of `size` consecutive ranks along an axis; the one that spans the most nodes."""
        number = np.arange(self.workers * self.stages * self.model_parallel_size) // self.stride(axis)
        ranks = np.flatnonzero(number % size == 0)[:, None] + self.stride(axis) * np.arange(size)
        crossings = np.count_nonzero(np.diff(self.device_of(ranks) // self.devices, axis=1), axis=1)
        return self.group(ranks[crossings.argmax()].tolist())

    def passing(self, axis: PassAxis) -> Group:
        """The ranks of a collective within passes; the slowest of all such groups."""
        if axis == "expert":
            return self.expert_group()
        if axis == "expert_tensor":
            return self.along("tensor", self.expert_shards)
        if axis in ("tables", "features"):
            return self.replicas_of(self.stages - 1)
        return self.along(axis, self.tensor if axis == "tensor" else self.context)

    @lru_cache(maxsize=64)  # noqa: B019 (meshes are small and few)
    def experts(self) -> NDArray[np.int64]:
        """Ranks by their part of a mixture, shape (stages, expert_tensor, replicas, expert). Ranks along the last axis have
        different experts and exchange tokens; ranks along the third axis have the same experts; ranks along the second axis
        divide each expert's matrices."""
        shared = self.expert_shards
        sizes = self.stages, shared, self.context, self.workers, self.tensor // shared
        strides = [self.stride(axis) for axis in ("stages", "tensor", "context", "workers")]
        axes = np.indices(sizes).reshape(len(sizes), -1)
        ranks = (np.array([*strides, shared * self.stride("tensor")]) @ axes).reshape(self.stages, shared, -1)
        if self.expert_tensor is not None:
            ranks = np.sort(ranks, axis=-1)
        return ranks.reshape(self.stages, shared, -1, self.expert)

    @lru_cache(maxsize=64)  # noqa: B019 (meshes are small and few)
    def expert_group(self) -> Group:
        """A group of ranks that exchange tokens; the one that spans the most nodes."""
        groups = self.experts().reshape(-1, self.expert)
        groups = groups[np.argsort(groups[:, 0])]
        crossings = np.count_nonzero(np.diff(self.device_of(groups) // self.devices, axis=1), axis=1)
        return self.group(groups[crossings.argmax()].tolist())

    def expert_replicas(self, stage: int) -> list[list[int]]:
        """For each part of a stage's experts the ranks that have it, among those with the first part of each matrix."""
        ranks: list[list[int]] = self.experts()[stage, 0].T.tolist()
        return ranks

    def on_first_node(self, ranks: Sequence[int]) -> int:
        """Number of the given ranks that are on the first one's node."""
        nodes = self.device_of(np.array(ranks)) // self.devices
        return int((nodes == nodes[0]).sum())

    def workers_on(self, nodes: Sequence[int], stage: int) -> list[int]:
        """Workers with a rank of this stage on one of the nodes."""
        ranks = self.stride("workers") * np.arange(self.workers)[:, None] + self.members(0, stage)
        return np.flatnonzero(np.isin(self.device_of(ranks) // self.devices, nodes).any(axis=1)).tolist()


class RankClass(NamedTuple):
    """A class of equivalent ranks: `each` ranks on every one of `nodes` equivalent nodes; `node` and `rank` are the first."""

    node: int
    nodes: int
    each: int
    rank: int

    @property
    def ranks(self) -> int:
        """Number of ranks of the class."""
        return self.nodes * self.each

    def name(self, role: str = "worker") -> str:
        """Name of the class, such as '4 workers' or 'server 5'."""
        return f"{self.ranks} {role}s" if self.ranks > 1 else f"{role} {self.rank}"


def place(
    ranks: int, per_node: int | Sequence[int], distinguishable: Collection[int], labels: Sequence[Hashable] = ()
) -> list[RankClass]:
    """Classes of equivalent ranks that fill nodes in order; each `distinguishable` rank is a class of its own.

    per_node: number of ranks that fill a node, or each of the nodes. labels: of each rank, such as its samples and its device,
    equal within a class; none if all are equal. Nodes are equivalent if they have the same number of ranks, with the same
    labels in order, and none is `distinguishable`.
    """
    ends = np.minimum(np.cumsum([per_node] * -(-ranks // per_node) if isinstance(per_node, int) else per_node), ranks)
    ends = ends[: 1 + int(ends.argmax())]
    on_nodes = [range(first, last) for first, last in itertools.pairwise([0, *ends.tolist()])]
    touched = set(np.searchsorted(ends, sorted(distinguishable), side="right").tolist())
    equivalent: dict[object, list[int]] = {}
    for node, own in enumerate(on_nodes):
        key = node if node in touched else (len(own), *labels[own.start : own.stop])
        equivalent.setdefault(key, []).append(node)
    classes = []
    for nodes in equivalent.values():
        by_label: dict[Hashable, list[int]] = {}
        for rank in on_nodes[nodes[0]]:
            if rank in distinguishable:
                classes.append(RankClass(nodes[0], 1, 1, rank))
            else:
                by_label.setdefault(labels[rank] if labels else 0, []).append(rank)
        classes += [RankClass(nodes[0], len(nodes), len(members), members[0]) for members in by_label.values()]
    return sorted(classes, key=lambda ranks: ranks.rank)
