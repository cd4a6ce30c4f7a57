"""Process groups of a captured script: which parallel dimension they are, and the replicas of the model that they show.

Ranks are numbered with replicas on one axis: rank = (outer · replicas + replica) · inner + rest. Groups contain all replicas
(data parallelism) or one of them (parallelism inside a replica). Only then does another number of replicas change nothing but
the sizes of groups.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.captured.record import NONE, Capture, EventKind, RecordedRanks, TrainingPass
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import FieldError

_FIELD = ("strategy", "workers")


@dataclass(frozen=True)
class Replicas:
    """The axis of the replicas. count: number of them; inner: ranks between neighbouring replicas."""

    count: int
    inner: int = 1

    @classmethod
    def from_groups(cls, count: int, world: int, groups: Iterable[Sequence[int]]) -> Replicas:
        """The axis that groups of `count` evenly spaced ranks show; without any, neighbouring ranks are neighbouring
        replicas."""
        for ranks in groups:
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 0
            if (
                stride
                and len(ranks) == count < world
                and list(ranks) == list(range(ranks[0], ranks[0] + count * stride, stride))
            ):
                return cls(count, stride)
        return cls(count)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Coordinates of a rank: outer, replica, rest."""
        outer, within = divmod(rank, self.count * self.inner)
        return outer, *divmod(within, self.inner)

    def rank(self, outer: int, replica: int, rest: int) -> int:
        """The rank with these coordinates."""
        return (outer * self.count + replica) * self.inner + rest

    def moved(self, rank: int, to: Replicas) -> int:
        """A rank of the first replicas, with the same coordinates among others."""
        outer, replica, rest = self.place(rank)
        return to.rank(outer, self._same(replica, to), rest)

    def _same(self, replica: int, to: Replicas) -> int:
        """The corresponding replica among others: the first ones stay the first, the last ones the last."""
        return min(replica, to.count - 1) if 2 * replica < self.count else max(0, to.count - self.count + replica)

    def resized(self, ranks: Sequence[int], to: Replicas) -> list[int]:
        """The corresponding ranks among another number of replicas. Raises FieldError for a group of some of the replicas."""
        if to == self:
            return list(ranks)
        replicas: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for outer, replica, rest in map(self.place, ranks):
            replicas[outer, rest].append(replica)
        result = []
        for (outer, rest), present in replicas.items():
            if len(present) == self.count:
                result += [to.rank(outer, replica, rest) for replica in range(to.count)]
            elif len(present) == 1:
                result.append(to.rank(outer, self._same(present[0], to), rest))
            else:
                groups = f"groups of {len(present)} of the {self.count} workers communicate"
                raise FieldError(_FIELD, f"{groups}; capture the script again on as many ranks")
        return sorted(result)

    def resized_classes(self, classes: Sequence[Sequence[int]], to: Replicas) -> list[list[int]]:
        """The ranks of all classes among another number of replicas: single ranks stay single, and the largest class grows.

        Raises FieldError if a class would be empty.
        """
        if to == self:
            return [list(ranks) for ranks in classes]
        largest: dict[tuple[int, int], int] = {}
        for number in sorted(range(len(classes)), key=lambda number: len(classes[number])):
            largest |= dict.fromkeys(((outer, rest) for outer, _, rest in map(self.place, classes[number])), number)
        owner = {
            self.moved(rank, to): number
            for number, ranks in enumerate(classes)
            for rank in ranks
            if largest[self.place(rank)[0], self.place(rank)[2]] != number
        }
        result: list[list[int]] = [[] for _ in classes]
        for (outer, rest), grows in largest.items():
            for rank in (to.rank(outer, replica, rest) for replica in range(to.count)):
                result[owner.get(rank, grows)].append(rank)
        if not all(result):
            raise FieldError(
                _FIELD, f"{to.count} workers are too few for ranks that differ; capture the script again on as many"
            )
        return [sorted(ranks) for ranks in result]


# Collectives by their names in records. A barrier is a sum of nothing.
COLLECTIVES: Final[Mapping[str, Op]] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce", "alltoall": "alltoall", "gather": "gather", "scatter": "scatter", "barrier": "all_reduce",
}  # fmt: skip
# Dimensions by words in descriptions of groups, as those of device meshes.
_WORDS: Final = {
    Dimension.TENSOR: re.compile(r"(^|[^a-z])(tp|tensor)([^a-z]|$)"),
    Dimension.CONTEXT: re.compile(r"(^|[^a-z])(cp|context)([^a-z]|$)"),
    Dimension.PIPELINE: re.compile(r"(^|[^a-z])(pp|pipeline|stage)"),
    # ranks that share experts are replicas of all else, whatever else a group's name has
    Dimension.EXPERT: re.compile(r"(^|[^a-z])(ep|expert)([^a-z]|$)"),
}
# Words in descriptions of groups of ranks with the same parameters or with shards of them, whatever else describes these: those
# of 'dp_shard_cp' share sequences too, those of 'expert_data_parallel' have the same experts.
_OF_REPLICAS: Final = re.compile(r"(^|[^a-z])(e?dp|[fh]sdp|ddp|data|replicas?|replicate|shards?|zero)([^a-z]|$)")
_SHARDING: Final = ("all_gather", "reduce_scatter")
# Collectives of activations, and of at least this size: smaller ones are losses, norms and flags.
_OF_ACTIVATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter")
_SMALL_BYTES: Final = 4096
# The node of autograd that adds to a parameter's gradient.
_ACCUMULATES: Final = "AccumulateGrad"


@dataclass(frozen=True)
class GroupRoles:
    """Roles of the groups of a rank class, by their index.

    dimensions: those that descriptions or use show. inside: groups of ranks of one replica. pipeline: whether the class
    exchanges messages. shards: whether parameters or states are sharded over replicas.
    """

    dimensions: Mapping[int, Dimension]
    inside: tuple[int, ...]
    pipeline: bool
    shards: bool

    @classmethod
    def from_ranks(cls, one: RecordedRanks) -> GroupRoles:
        """The roles of a class's groups, by their descriptions and by what moves through them."""
        of_replicas = {index for index, group in enumerate(one.groups) if _OF_REPLICAS.search(group.description.lower())}
        described = {
            index: dimension
            for index, group in enumerate(one.groups)
            for dimension, words in _WORDS.items()
            if index not in of_replicas and words.search(group.description.lower())
        }
        replicas = _of_gradients(one)
        summing = [set(one.groups[index].ranks) for index in replicas]
        # ranks that sum gradients have the same parameters, and share no tensors whatever else some of them exchange
        among = {index for index in _of_activations(one) if any(ranks.issuperset(one.groups[index].ranks) for ranks in summing)}
        used = {index: Dimension.TENSOR for index in _of_activations(one) - among - of_replicas if index not in described}
        dimensions = used | dict.fromkeys(replicas | among, Dimension.DATA) | described
        inner = (Dimension.TENSOR, Dimension.CONTEXT, Dimension.PIPELINE)
        inside = tuple(index for index, dimension in dimensions.items() if dimension in inner)
        messages = one.rows(EventKind.SEND, EventKind.RECEIVE)
        columns = one.columns
        collectives = one.rows(EventKind.COLLECTIVE)
        outside = [
            one.text("name", row)
            for row in collectives.tolist()
            if columns["group"][row] not in inside and columns["bytes_written"][row] > _SMALL_BYTES
        ]
        return cls(dimensions, inside, bool(len(messages)), any(name in _SHARDING for name in outside))

    def dimension(self, group: int, op: Op) -> Dimension:
        """The parallel dimension of a collective over a group."""
        if group in self.dimensions:
            return self.dimensions[group]
        if op == "alltoall":
            return Dimension.EXPERT
        return Dimension.FSDP if op in _SHARDING else Dimension.DATA


def whole_bytes(op: Op, read: int, written: int, ranks: int) -> int:
    """Bytes of a collective's whole buffer, from those of one rank's input and output."""
    if op == "all_gather":
        return max(written, read * ranks)
    if op == "reduce_scatter":
        return max(read, written * ranks)
    if op == "gather":
        return read * ranks
    if op == "scatter":
        return written * ranks
    return max(read, written)


def _of_activations(one: RecordedRanks) -> set[int]:
    """Groups whose collectives move activations: they are issued in the forward pass on the stream of the kernels, where those
    of sharded parameters have streams of their own."""
    columns = one.columns
    rows = one.rows(EventKind.COLLECTIVE)
    operators = one.rows(EventKind.OPERATOR)
    if not len(operators):
        return set()
    main = int(max(set(streams := columns["stream"][operators].tolist()), key=streams.count))
    return {
        int(columns["group"][row])
        for row in rows.tolist()
        if columns["phase"][row] == TrainingPass.FORWARD
        and columns["stream"][row] == main
        and one.text("name", row) in _OF_ACTIVATIONS
        and columns["bytes_written"][row] > _SMALL_BYTES
        and columns["group"][row] != NONE
    }


def _of_gradients(one: RecordedRanks) -> set[int]:
    """Groups that sum gradients: as soon as autograd has accumulated them, as DistributedDataParallel does, or once it is done,
    as scripts do themselves. Their ranks are replicas, whatever else they exchange."""
    columns, rows = one.columns, one.rows(EventKind.COLLECTIVE).tolist()
    found = {int(columns["group"][row]) for row in rows if one.text("node", row).endswith(_ACCUMULATES)}
    later: Counter[int] = Counter()
    for row in rows:
        if (
            columns["phase"][row] != TrainingPass.FORWARD
            and one.text("name", row) == "all_reduce"
            and not one.text("node", row)
        ):
            later[int(columns["group"][row])] += int(columns["bytes_written"][row])
    # tensor-parallel ranks sum gradients of norms so
    return found | {group for group, summed_bytes in later.items() if summed_bytes > one.local_parameters}


def _connected(capture: Capture, first: int) -> int:
    """Number of ranks that messages connect with one, which include it."""
    peers = defaultdict[int, set[int]](set)
    for one in capture.classes:
        steps = {int(peer) - one.played for peer in one.columns["peer"][one.rows(EventKind.SEND, EventKind.RECEIVE)]}
        for rank in (rank for ranks in one.ranks for rank in ranks):
            peers[rank] |= {rank + step for step in steps}
    found, new = {first}, {first}
    while new:
        new = {peer for rank in new for peer in peers[rank]} - found
        found |= new
    return len(found)


def replicas_of(capture: Capture, roles: Sequence[GroupRoles]) -> Replicas:
    """The replicas of the model among the ranks: all ranks that no group inside a replica connects."""
    first = min(range(len(capture.classes)), key=lambda number: capture.classes[number].played)
    one, role = capture.classes[first], roles[first]
    inside = [one.groups[index].ranks for index in role.inside if len(one.groups[index].ranks) < capture.world_size]
    # ranks of one replica: groups may be made several times, and some contain others
    replica = {one.played}
    for ranks in sorted(inside, key=len):
        if not replica.issuperset(ranks):
            replica = {rank + other - one.played for rank in replica for other in ranks}
    stages = [index for index in role.inside if role.dimensions[index] == Dimension.PIPELINE]
    unseen = min(len(capture.classes), _connected(capture, one.played)) if role.pipeline and not stages else 1
    count = max(1, capture.world_size // (len(replica) * unseen))
    groups = [group.ranks for each in capture.classes for group in each.groups]
    return Replicas.from_groups(count, capture.world_size, groups)
