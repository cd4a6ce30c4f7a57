"""Classes of equal ranks are found with few played ranks, wherever ranks differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.captured.record import EventKind, ProcessGroup, RecordedRanks, TrainingPass
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.capture.rank_classes import axes_of, find_classes, ranges, with_differences
from tests.simulator.captured.records import Step, rank_class
from tests.validator.capture.test_capture import captured


class Played:
    """Plays ranks whose hash a function gives."""

    def __init__(self, hash_of: Callable[[int], object]) -> None:
        self._hash_of = hash_of
        self.hashes: dict[int, str] = {}

    def __call__(self, ranks: Iterable[int]) -> Mapping[int, str]:
        self.hashes |= {rank: str(self._hash_of(rank)) for rank in ranks}
        return self.hashes


def mesh(*sizes: int) -> list[ProcessGroup]:
    """Groups along each dimension of a mesh, the last one with neighbouring ranks."""
    world = 1
    for size in sizes:
        world *= size
    groups = [ProcessGroup("world", range(world))]
    inner = world
    for place, size in enumerate(sizes):
        inner //= size
        for start in range(world):
            if (start // inner) % size == 0:
                ranks = range(start, start + inner * size, inner)
                groups.append(ProcessGroup(f"{place}-{start}", ranks, f"axis {place}"))
    return groups


def classes_of(hash_of: Callable[[int], object], *sizes: int) -> tuple[list[set[int]], int]:
    """Sets of equal ranks in a mesh, and the number of played ones."""
    groups = mesh(*sizes)
    world = len(groups[0].ranks)
    play = Played(hash_of)
    found = find_classes(world, axes_of(groups, world), play)
    for one in found:
        assert one.played in one.ranks
        assert one.played in play.hashes
    assert sorted(rank for one in found for rank in one.ranks) == list(range(world))
    return [set(one.ranks) for one in found], len(play.hashes)


def test_equal_ranks_are_one_class_after_two_plays() -> None:
    assert classes_of(lambda rank: 0, 1024) == ([set(range(1024))], 2)


@pytest.mark.parametrize("special", [0, 1023])
def test_a_rank_that_prints_is_a_class_of_its_own(special: int) -> None:
    classes, played = classes_of(lambda rank: rank == special, 1024)
    assert {special} in classes
    assert len(classes) == 2
    assert played <= 5


def test_stages_of_a_pipeline_are_classes() -> None:
    classes, played = classes_of(lambda rank: rank % 8, 128, 8)
    assert classes == [set(range(stage, 1024, 8)) for stage in range(8)] or len(classes) == 8
    assert {frozenset(one) for one in classes} == {frozenset(range(stage, 1024, 8)) for stage in range(8)}
    assert played <= 16


@given(st.integers(1, 62))
def test_uneven_shards_are_found(boundary: int) -> None:
    classes, played = classes_of(lambda rank: rank % 64 >= boundary, 16, 64)
    below = {rank for rank in range(1024) if rank % 64 < boundary}
    assert {frozenset(one) for one in classes} == {frozenset(below), frozenset(set(range(1024)) - below)}
    assert played <= 24


def test_a_pipeline_whose_first_rank_prints() -> None:
    classes, _ = classes_of(lambda rank: (rank % 4, rank == 0), 4, 4)
    assert {frozenset(one) for one in classes} == {
        frozenset({0}), frozenset({4, 8, 12}),
        frozenset(range(1, 16, 4)), frozenset(range(2, 16, 4)), frozenset(range(3, 16, 4)),
    }  # fmt: skip


def test_axes_of_a_mesh_without_the_groups_of_flattened_dimensions() -> None:
    flattened = [ProcessGroup(f"f{start}", range(start, start + 8), "flat") for start in range(0, 32, 8)]
    axes = axes_of([*mesh(4, 2, 4), *flattened], 32)
    assert [(axis.name, axis.size) for axis in axes] == [("axis 1", 2), ("axis 0", 4), ("axis 2", 4)]


def test_what_groups_leave_open_is_an_axis() -> None:
    axes = axes_of([ProcessGroup(str(start), range(start, start + 4), "ep") for start in range(0, 16, 4)], 16)
    assert [(axis.name, axis.size) for axis in axes] == [("ep", 4), ("the other ranks", 4)]


@given(st.sets(st.integers(0, 100), min_size=1))
def test_ranges_contain_the_ranks_in_order(ranks: set[int]) -> None:
    assert [rank for each in ranges(sorted(ranks)) for rank in each] == sorted(ranks)


def test_evenly_spaced_ranks_are_one_range() -> None:
    assert ranges(list(range(3, 1024, 8))) == (range(3, 1020, 8),)


def _class_with(name: str, *operators: tuple[str, tuple[int, ...]], ranks: range = range(4)) -> RecordedRanks:
    """A class of ranks that call operators on tensors of a shape."""
    step = Step().add(EventKind.STEP)
    for operator, shape in operators:
        step.operator(operator, [(shape, "float32")], (shape, "float32"), TrainingPass.FORWARD, line="train.py:7")
    return rank_class(step, ranks, [], name=name)


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        ([("aten::relu", (8, 4))], "1 instead of 2 relu, compared with"),
        ([("aten::relu", (8, 4)), ("aten::mul", (8, 4))], "1 instead of 2 relu, 1 instead of 0 mul, compared with"),
        ([("aten::relu", (8, 4)), ("aten::relu", (9, 4))], "relu of 9×4 instead of 8×4 at train.py:7, compared with"),
        ([("aten::relu", (8, 4)), ("aten::relu", (8, 4))], "waits and streams differ from those of"),
    ],
)  # fmt: skip
def test_what_distinguishes_a_class_is_its_operators_or_their_tensors(
    operators: list[tuple[str, tuple[int, ...]]], words: str
) -> None:
    usual = _class_with("ranks 0 to 3", ("aten::relu", (8, 4)), ("aten::relu", (8, 4)))
    other = _class_with("rank 4", *operators, ranks=range(4, 5))
    assert [one.why for one in with_differences([usual, other])] == ["", f"{words} ranks 0 to 3"]


def test_groups_made_in_turns_and_across_several_dimensions_leave_a_grid() -> None:
    # as Megatron makes them: each pipeline group is followed by the group of its embeddings, which here has the same ranks
    tensor = [ProcessGroup("", [start, start + 1], "tensor") for start in range(0, 8, 2)]
    data = [ProcessGroup("", [start, start + 2], "data") for start in (0, 1, 4, 5)]
    model = [ProcessGroup("", [start, start + 1, start + 4, start + 5], "model") for start in (0, 2)]
    pipeline = [ProcessGroup("", [at, at + 4], name) for at in range(4) for name in ("pipeline", "embedding")]
    axes = axes_of([ProcessGroup("", range(8)), *model, *data, *tensor, *pipeline], 8)
    assert sorted(axis.size for axis in axes) == [2, 2, 2]
    found = find_classes(8, axes, Played(lambda rank: rank // 4))
    assert [one.ranks for one in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.full
@pytest.mark.parametrize("way", ["mesh", "hybrid mesh", "hybrid fsdp1", "new group", "norms of nodes", "by hand"])
def test_ranks_with_the_same_parameters_are_replicas_in_whatever_groups(way: str, tmp_path: Path) -> None:
    ranks = 8
    captured(Path(__file__).parent / "scripts" / "replica_groups.py", way, ranks=ranks).write(tmp_path / "groups.zip")
    scenario = load(tmp_path / "groups.zip", {"cluster": "dgx-h100"})
    assert scenario.strategy.plan.workers == ranks
    assert scenario.total_samples == 64 * ranks
    labels = {one.label.partition(" ")[0] for one in predict(scenario, interval=False).communication}
    assert labels <= {"DP", "FSDP", "other"}
