"""Replicas of a captured job among its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.captured.groups import GroupRoles, Replicas, replicas_of
from scaleproof.simulator.captured.record import EventKind, ProcessGroup, TrainingPass
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import FieldError
from tests.simulator.captured.records import MIB, Step, capture, rank_class

SUMS = "torch::autograd::AccumulateGrad"


def exchanging(group: int, *sums: tuple[int, str]) -> Step:
    """A step in which ranks of a group gather activations, and those of others sum 32 MiB of gradients. sums: groups, and nodes
    of autograd that run the sums."""
    tokens, weights = ((8192, 4096), "bfloat16"), ((4096, 4096), "bfloat16")
    step = Step().add(EventKind.STEP).operator("aten::mm", [tokens, weights], tokens, TrainingPass.FORWARD)
    step.collective("all_gather", group, MIB, 2 * MIB, 1, TrainingPass.FORWARD)
    step.operator("aten::mm", [tokens, weights], tokens, TrainingPass.BACKWARD)
    for work, (summing, node) in enumerate(sums, start=2):
        more: dict[str, Any] = {"node": node} if node else {}
        step.collective("all_reduce", summing, 32 * MIB, 32 * MIB, work, TrainingPass.BACKWARD, **more)
    return step


def gathered_by(step: Step, *groups: ProcessGroup, ranks: int = 16) -> tuple[Dimension, int]:
    """The dimension of the first group's gathers of activations, and the number of replicas."""
    one = rank_class(step, range(ranks), groups)
    roles = GroupRoles.from_ranks(one)
    return roles.dimension(0, "all_gather"), replicas_of(capture(one), [roles]).count


def test_the_axis_of_the_replicas_follows_from_their_groups() -> None:
    # 2 stages × 4 replicas × 2 tensor-parallel ranks
    assert Replicas.from_groups(4, 16, [(0, 1), (0, 2, 4, 6), (0, 8)]) == Replicas(4, 2)
    assert Replicas.from_groups(8, 8, [range(8)]) == Replicas(8, 1)


def test_groups_of_all_replicas_grow_and_groups_within_one_stay() -> None:
    captured, larger = Replicas(4, 2), Replicas(8, 2)
    assert captured.resized((0, 2, 4, 6), larger) == list(range(0, 16, 2))
    assert captured.resized((0, 1), larger) == [0, 1]
    # ranks of the second stage follow those of the first
    assert captured.resized((0, 8), larger) == [0, 16]
    assert captured.resized(range(16), larger) == list(range(32))


def test_groups_of_some_replicas_need_another_capture() -> None:
    with pytest.raises(FieldError, match="capture the script again"):
        Replicas(8).resized((0, 1, 2, 3), Replicas(16))


def test_the_same_number_of_replicas_changes_nothing() -> None:
    assert Replicas(8).resized((0, 3), Replicas(8)) == [0, 3]


def test_ranks_that_differ_stay_single_and_the_others_grow() -> None:
    classes = [(0,), (7,), range(1, 7)]
    assert Replicas(8).resized_classes(classes, Replicas(16)) == [[0], [15], list(range(1, 15))]
    assert Replicas(8).resized_classes(classes, Replicas(4)) == [[0], [3], [1, 2]]
    # two stages, whose ranks follow one another
    assert Replicas(2, 1).resized_classes([(0, 1), (2, 3)], Replicas(4, 1)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_fewer_workers_than_ranks_that_differ_need_another_capture() -> None:
    with pytest.raises(FieldError, match="too few"):
        Replicas(8).resized_classes([(0,), range(1, 8)], Replicas(1))


def test_groups_that_are_made_again_or_contain_others_count_once() -> None:
    names = {"tp": (0, 1), "mesh_tp": (0, 1), "pipeline": (0, 4), "tensor and pipeline": (0, 1, 4, 5), "mesh_dp": (0, 2)}
    one = rank_class(Step().add(EventKind.STEP), range(8), [ProcessGroup(name, ranks, name) for name, ranks in names.items()])
    assert replicas_of(capture(one), [GroupRoles.from_ranks(one)]).count == 2


WORLD = ProcessGroup("0", range(16))
SOME = ProcessGroup("1", range(4))


@pytest.mark.parametrize("node", [SUMS, ""])
@pytest.mark.parametrize("group", [WORLD, ProcessGroup("1", range(16)), SOME, ProcessGroup("1", range(0, 16, 4))])
def test_ranks_that_sum_gradients_are_replicas_whatever_they_gather(group: ProcessGroup, node: str) -> None:
    # as features of contrastive losses, and statistics of synchronised norms in groups of a node
    assert gathered_by(exchanging(0, (1, node)), group, WORLD) == (Dimension.DATA, 16)


def test_ranks_that_gather_activations_and_sum_gradients_with_others_are_tensor_parallel() -> None:
    replicas = ProcessGroup("2", range(0, 16, 4))
    assert gathered_by(exchanging(0, (1, SUMS)), SOME, replicas) == (Dimension.TENSOR, 4)
    # they sum gradients of norms, which are few
    step = exchanging(0, (1, SUMS)).collective("all_reduce", 0, MIB, MIB, 9, TrainingPass.BACKWARD)
    assert gathered_by(step, SOME, replicas) == (Dimension.TENSOR, 4)


@pytest.mark.parametrize(
    "name", ["mesh_dp_shard_cp", "mesh_dp_shard_mod_ep", "EXPERT_DATA_PARALLEL_GROUP", "mesh_shard", "dp-cp", "mesh_fsdp"]
)
def test_groups_with_shards_of_the_same_parameters_are_of_replicas(name: str) -> None:
    step = exchanging(0)
    dimension, count = gathered_by(step, ProcessGroup("1", range(16), name))
    assert (dimension, count) == (Dimension.FSDP, 16)


@pytest.mark.parametrize(
    ("name", "dimension"), [("mesh_tp", "TENSOR"), ("TENSOR_MODEL_PARALLEL_GROUP", "TENSOR"), ("mesh_cp", "CONTEXT")]
)
def test_groups_inside_of_replicas_have_the_dimension_of_their_name(name: str, dimension: str) -> None:
    assert gathered_by(exchanging(0), ProcessGroup("1", range(4), name)) == (Dimension[dimension], 4)


def test_ranks_that_share_experts_are_replicas_of_all_else() -> None:
    names = ("EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP")
    one = rank_class(Step().add(EventKind.STEP), range(8), [ProcessGroup(name, (0, 1, 2, 3), name) for name in names])
    assert replicas_of(capture(one), [GroupRoles.from_ranks(one)]).count == 8
