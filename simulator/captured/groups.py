"""Roles of process groups in a captured script: which parallel dimension they are, and how many replicas there are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.captured.record import NONE, Capture, EventKind, RecordedRanks, TrainingPass
from scaleproof.simulator.captured.replicas import Replicas
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.communication import Dimension

# Dimensions by words in descriptions of groups, as those of device meshes.
_WORDS: Final = {
    Dimension.TENSOR: re.compile(r"(^|[^a-z])(tp|tensor)([^a-z]|$)"),
    Dimension.CONTEXT: re.compile(r"(^|[^a-z])(cp|context)([^a-z]|$)"),
    Dimension.EXPERT: re.compile(r"(^|[^a-z])(ep|expert)([^a-z]|$)"),
    Dimension.PIPELINE: re.compile(r"(^|[^a-z])(pp|pipeline|stage)"),
}
_SHARDING: Final = ("all_gather", "reduce_scatter")
# Collectives of activations, and of at least this size: smaller ones are losses, norms and flags.
_OF_ACTIVATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter")
_SMALL_BYTES: Final = 4096


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
    def of(cls, one: RecordedRanks) -> GroupRoles:
        """The roles of a class's groups, by their descriptions and by what moves through them."""
        described = {
            index: dimension
            for index, group in enumerate(one.groups)
            for dimension, words in _WORDS.items()
            if words.search(group.description.lower())
        }
        used = {index: Dimension.TENSOR for index in _of_activations(one) if index not in described}
        dimensions = used | described
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


def replicas_of(capture: Capture, roles: Sequence[GroupRoles]) -> Replicas:
    """The replicas of the model among the ranks: all ranks that no group inside a replica connects."""
    first = min(range(len(capture.classes)), key=lambda number: capture.classes[number].played)
    one, role = capture.classes[first], roles[first]
    sizes = [len(one.groups[index].ranks) for index in role.inside if len(one.groups[index].ranks) < capture.world_size]
    stages = [index for index in role.inside if role.dimensions[index] == Dimension.PIPELINE]
    if role.pipeline and not stages:
        sizes.append(len(capture.classes))
    count = max(1, capture.world_size // max(1, math.prod(sizes)))
    groups = [group.ranks for each in capture.classes for group in each.groups]
    return Replicas.of(count, capture.world_size, groups)
