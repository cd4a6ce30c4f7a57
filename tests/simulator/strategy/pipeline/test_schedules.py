from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.stages import ScheduleName, check_schedule, stage_of
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order, peak_activations
from tests.validator.verdicts import in_bulk

LOOPED: tuple[ScheduleName, ...] = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
CHUNKS = dict.fromkeys((*LOOPED, "zb_v", "dualpipe_v"), 2)
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
SECONDS = st.floats(0.1, 10.0)
TIMES = st.builds(PassTimes, SECONDS, SECONDS, SECONDS, st.floats(0.0, 2.0), st.floats(0.2, 1.0))
ONE = PassTimes(1.0, 1.0, 1.0)

KINDS = {
    "FORWARD": Pass.FORWARD,
    "FULL_BACKWARD": Pass.BACKWARD,
    "BACKWARD_INPUT": Pass.INPUT,
    "BACKWARD_WEIGHT": Pass.WEIGHT,
}
Step = tuple[Pass, int, int]  # kind, stage, microbatch
Key = tuple[bool, int, int]  # whether backward, stage, microbatch


def rank_passes(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, times: PassTimes = ONE
) -> list[list[list[int]]]:
    """The passes of each rank as [kind, chunk, microbatch, slot], without the padding."""
    passes = np.stack(order(schedule, ranks, microbatches, chunks, times), axis=-1)
    return [[each for each in passes if each[0] >= 0] for passes in passes.tolist()]


def replayed(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, seconds: dict[Pass, float], send_s: float = 0.0,
    times: PassTimes = ONE,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Start of each rank's first and end of its last pass, with passes evaluated in the order of their slots."""
    last = ranks * chunks - 1
    home = {stage_of(schedule, ranks, rank, chunk): rank for rank in range(ranks) for chunk in range(chunks)}
    ends_s: dict[Key, float] = {}
    free_s, begin_s = np.zeros(ranks), np.full(ranks, np.inf)
    queue = [
        (each[3], rank, each)
        for rank, passes in enumerate(rank_passes(schedule, ranks, microbatches, chunks, times))
        for each in passes
    ]
    for _, rank, (kind, chunk, microbatch, _) in sorted(queue):
        stage = stage_of(schedule, ranks, rank, chunk)
        needed = needs(Pass(kind), stage, microbatch, last)
        start_s = free_s[rank]
        if needed is not None:
            start_s = max(start_s, ends_s[needed] + send_s * (home[needed[1]] != rank))
        begin_s[rank] = min(begin_s[rank], start_s)
        free_s[rank] = start_s + seconds[Pass(kind)]
        if kind != Pass.WEIGHT:
            ends_s[kind != Pass.FORWARD, stage, microbatch] = free_s[rank]
    return begin_s, free_s


def needs(kind: Pass, stage: int, microbatch: int, last: int) -> Key | None:
    """The pass that a pass depends on, in addition to the previous one of its rank."""
    if kind == Pass.FORWARD:
        return (False, stage - 1, microbatch) if stage else None
    if kind == Pass.WEIGHT:
        return (True, stage, microbatch)
    return (False, stage, microbatch) if stage == last else (True, stage + 1, microbatch)


def bubble(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, synchronised: bool = True) -> float:
    """Share of the step that is idle with passes that take as long as each other: ranks begin the next step together, or each
    as soon as it is done."""
    seconds = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0, Pass.INPUT: 1.0, Pass.WEIGHT: 1.0}
    begin_s, end_s = replayed(schedule, ranks, microbatches, chunks, seconds)
    step_s = float(end_s.max() if synchronised else (end_s - begin_s).max())
    return 1 - 3 * microbatches * chunks / step_s


@st.composite
def numbers(draw: st.DrawFn) -> tuple[ScheduleName, int, int, int]:
    """A schedule with ranks, microbatches and chunks for which it has an order."""
    schedule = draw(st.sampled_from(SCHEDULES))
    chunks = draw(st.integers(2, 3)) if schedule in LOOPED else CHUNKS.get(schedule, 1)
    ranks, microbatches = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    try:
        check_schedule(schedule, ranks, microbatches, chunks)
    except FieldError:
        reject()
    return schedule, ranks, microbatches, chunks


@given(numbers(), TIMES)
def test_every_pass_occurs_once_and_after_its_dependencies(
    numbers: tuple[ScheduleName, int, int, int], times: PassTimes
) -> None:
    schedule, ranks, microbatches, chunks = numbers
    last = ranks * chunks - 1
    slots: dict[tuple[Pass, int, int], int] = {}
    for rank, passes in enumerate(rank_passes(schedule, ranks, microbatches, chunks, times)):
        assert (np.diff([slot for *_, slot in passes]) > 0).all(), "a rank runs one after the other"
        for kind, chunk, microbatch, slot in passes:
            key = Pass(kind), stage_of(schedule, ranks, rank, chunk), microbatch
            assert key not in slots
            slots[key] = slot
    kinds = Counter(kind for kind, _, _ in slots)
    passes = ranks * chunks * microbatches
    assert kinds[Pass.FORWARD] == passes
    assert kinds[Pass.BACKWARD] + kinds[Pass.INPUT] == passes
    assert kinds[Pass.INPUT] == kinds[Pass.WEIGHT]
    for (kind, stage, microbatch), slot in slots.items():
        needed = needs(kind, stage, microbatch, last)
        if needed is not None:
            made = (Pass.BACKWARD, Pass.INPUT) if needed[0] else (Pass.FORWARD,)
            assert any(slots.get((each, *needed[1:]), slot) < slot for each in made)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slot_is_the_longest_path_to_its_pass(schedule: ScheduleName) -> None:
    """If every pass takes one second, it starts at its slot."""
    for ranks, microbatches in ((1, 3), (3, 6), (4, 12)):
        chunks = CHUNKS.get(schedule, 1)
        ends_s = replayed(schedule, ranks, microbatches, chunks, dict.fromkeys(Pass, 1.0))[1]
        assert [passes[-1][3] + 1 for passes in rank_passes(schedule, ranks, microbatches, chunks)] == ends_s.tolist()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(ranks=st.integers(1, 6), microbatches=st.integers(1, 12))
def test_bubble_of_gpipe_and_1f1b_equals_the_formula(schedule: ScheduleName, ranks: int, microbatches: int) -> None:
    """(p − 1) / (m + p − 1), also with fewer microbatches than ranks: arXiv 1811.06965, 2006.09503."""
    assert bubble(schedule, ranks, microbatches) == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(2, 4))
def test_bubble_of_interleaved_1f1b_equals_the_formula(ranks: int, rounds: int, chunks: int) -> None:
    """(p − 1) / (v · m + p − 1): arXiv 2104.04473."""
    microbatches = ranks * rounds
    theory = (ranks - 1) / (chunks * microbatches + ranks - 1)
    assert bubble("interleaved_1f1b", ranks, microbatches, chunks) == pytest.approx(theory)


@given(st.integers(1, 6), st.integers(0, 12))
def test_zb_h1_has_a_third_of_the_idle_time_of_1f1b(ranks: int, extra: int) -> None:
    """arXiv 2401.10241, section 2.1; as much is idle where it may hold no more than 1F1B: ZB-1p."""
    microbatches = ranks + extra
    schedules: tuple[ScheduleName, ...] = ("zb_h1", "zb_1p")
    for schedule in schedules:
        idle, busy = ranks - 1, 3 * microbatches
        assert bubble(schedule, ranks, microbatches) == pytest.approx(idle / (busy + idle))


@given(st.integers(1, 6), st.integers(0, 12))
def test_zero_bubble_schedules_have_no_bubble_without_step_synchronisation(ranks: int, extra: int) -> None:
    microbatches = max(1, 2 * ranks - 1) + extra
    schedules: tuple[tuple[ScheduleName, int], ...] = (("zb_h2", 1), ("zb_2p", 1), ("zb_v", 2))
    for schedule, chunks in schedules:
        assert bubble(schedule, ranks, microbatches, chunks, synchronised=False) == pytest.approx(0.0)


@given(st.integers(2, 6), st.integers(1, 20), TIMES)
def test_searched_schedules_are_no_slower_than_fixed_ones(ranks: int, microbatches: int, times: PassTimes) -> None:
    seconds = {Pass.FORWARD: times.forward, Pass.INPUT: times.backward_input, Pass.WEIGHT: times.backward_weight}

    def step_s(schedule: ScheduleName) -> float:
        begin_s, end_s = replayed(schedule, ranks, microbatches, 1, seconds, times.send, times)
        return float((end_s - begin_s).max())

    assert step_s("zb_1p") <= step_s("zb_h1") * (1 + 1e-9)
    assert step_s("zb_2p") <= step_s("zb_h2") * (1 + 1e-9)


@given(st.integers(1, 6), st.integers(1, 16), TIMES)
def test_peak_activations_of_ranks_equal_the_expected_ones(ranks: int, microbatches: int, times: PassTimes) -> None:
    def peaks(schedule: ScheduleName, chunks: int = 1) -> list[float]:
        return list(peak_activations(schedule, ranks, microbatches, chunks, times))

    ahead = [min(ranks - rank, microbatches) for rank in range(ranks)]
    assert peaks("gpipe") == [microbatches] * ranks
    assert peaks("1f1b") == ahead
    assert peaks("looped_bfs", 3) == [3 * microbatches] * ranks
    assert max(peaks("zb_1p")) <= ranks + 1e-9
    assert max(peaks("zb_2p")) <= 2 * ranks + 1e-9
    # gradients of weights hold as much as others at most
    assert max(peak_activations("zb_h1", ranks, microbatches)) == ahead[0]
    assert max(peak_activations("zb_h2", ranks, microbatches)) == min(2 * ranks - 1, microbatches)
    assert max(peak_activations("zb_v", ranks, microbatches, 2)) <= 2 * ranks, "of half as many layers each"


def test_memory_freed_before_the_weight_gradient_allows_more_passes() -> None:
    """The search uses freed memory for more microbatches; handcrafted orders do not change."""
    all_kept, little = PassTimes(2.0, 2.0, 1.0), PassTimes(2.0, 2.0, 1.0, kept=0.4)
    assert (peak_activations("zb_h1", 4, 12, times=little) <= peak_activations("zb_h1", 4, 12, times=all_kept)).all()
    seconds = {Pass.FORWARD: 2.0, Pass.INPUT: 2.0, Pass.WEIGHT: 1.0}
    spans_s = [np.subtract(*reversed(replayed("zb_2p", 4, 12, 1, seconds, times=times))).max() for times in (all_kept, little)]
    assert spans_s[1] < spans_s[0]


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "chunks", "field", "nearest"),
    [
        ("1f1b", 4, 8, 2, "chunks", [1]),
        ("zb_2p", 4, 8, 2, "chunks", [1]),
        ("interleaved_1f1b", 4, 8, 1, "chunks", [2]),
        ("looped_bfs", 4, 8, 1, "chunks", [2]),
        ("zb_v", 4, 8, 3, "chunks", [2]),
        ("dualpipe_v", 4, 8, 1, "chunks", [2]),
        ("dualpipe_v", 4, 7, 2, "microbatches", [8]),
        ("interleaved_1f1b", 4, 9, 2, "microbatches", [8, 10]),
        ("interleaved_zero_bubble", 8, 29, 2, "microbatches", [27, 30]),
    ],
)
def test_unsupported_numbers_are_rejected_with_the_nearest_supported_ones(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, field: str, nearest: list[int]
) -> None:
    with pytest.raises(FieldError) as error:
        order(schedule, ranks, microbatches, chunks)
    assert error.value.field == ("strategy", field)
    given_ = [int(number) for number in re.findall(r"\d+", error.value.message.partition("; give ")[2])]
    assert given_ == nearest
    for number in given_:
        works = {"microbatches": microbatches, "chunks": chunks} | {field: number}
        check_schedule(schedule, ranks, **works)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "hidden", "heads", "times_ms", "rates"),
    [
        (8, 24, 2304, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083, 0.1585, 0.0433)),
        (8, 32, 2304, 24, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.1242, 0.0837, 0.1242, 0.0039)),
        (8, 64, 2304, 24, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0674, 0.0444, 0.0674, 0.0026)),
        (8, 24, 4096, 32, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.1323, 0.0698, 0.1323, 0.0029)),
        (16, 48, 5120, 40, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1397, 0.0672, 0.1397, 0.0066)),
        (32, 96, 6144, 48, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1421, 0.0641, 0.1421, 0.0038)),
    ],
)
def test_bubbles_equal_those_of_the_paper(
    ranks: int,
    microbatches: int,
    hidden: int,
    heads: int,
    times_ms: tuple[float, float, float, float],
    rates: tuple[float, ...],
) -> None:
    """arXiv 2401.10241, tables 3, 5 and 9: idle share of the slowest rank. Of a layer's activations, (34 + 5·a·s/h) elements of
    hidden size twice over, gradients of weights need 32 (table 1; a heads, s = 1024 tokens, h hidden)."""
    times = PassTimes(*times_ms, kept=32 / (34 + 5 * heads * 1024 / hidden))
    forward_s, input_s, weight_s, send_s, _ = times
    seconds = {Pass.FORWARD: forward_s, Pass.BACKWARD: input_s + weight_s, Pass.INPUT: input_s, Pass.WEIGHT: weight_s}
    schedules: tuple[ScheduleName, ...] = ("1f1b", "zb_h1", "zb_h2", "zb_1p", "zb_2p")
    for schedule, rate in zip(schedules, rates, strict=True):
        begin_s, end_s = replayed(schedule, ranks, microbatches, 1, seconds, send_s, times)
        busy_s = microbatches * (forward_s + input_s + weight_s)
        assert 1 - busy_s / float((end_s - begin_s).max()) == pytest.approx(rate, abs=1e-4), schedule


def of_torch(schedule: ScheduleName, name: str, ranks: int, microbatches: int, chunks: int) -> list[list[Step]]:
    """Kind, stage and microbatch of each rank's passes in torch, overlapped ones in the order of their names."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    actions = visualizer.get_schedule_ops(name, ranks, microbatches, chunks)
    flat = [[step for action in passes if action for step in (action.sub_actions or (action,))] for passes in actions]
    passes = [
        [
            (KINDS[text], step.stage_index, step.microbatch_index)
            for step in passes
            if (text := step.computation_type.name) in KINDS
        ]
        for passes in flat
    ]
    if schedule == "1f1b":
        # the last rank's forward passes are counted from 1 there
        passes[-1] = [(kind, stage, microbatch - (kind == Pass.FORWARD)) for kind, stage, microbatch in passes[-1]]
    return passes


@pytest.mark.parametrize(
    ("schedule", "name", "chunks"),
    [
        ("1f1b", "1F1B", (1,)),
        *in_bulk(
            ("dualpipe_v", "DualPipeV", (2,)),
            ("gpipe", "GPipe", (1,)),
            ("interleaved_1f1b", "Interleaved1F1B", (2, 3)),
            ("looped_bfs", "LoopedBFS", (2, 3)),
            ("interleaved_zero_bubble", "InterleavedZeroBubble", (2, 3)),
            ("zb_v", "ZBVZeroBubble", (2,)),
        ),
    ],
)
def test_orders_equal_those_of_torch(schedule: ScheduleName, name: str, chunks: tuple[int, ...]) -> None:
    """Numbers that torch rejects are rejected here. Its own 1F1B is wrong for fewer microbatches than ranks."""
    compared = 0
    for ranks, microbatches, each in product((1, 2, 3, 4, 6), (1, 2, 3, 4, 5, 6, 8, 9, 12, 13), chunks):
        if schedule == "1f1b" and microbatches < ranks:
            continue
        try:
            theirs = of_torch(schedule, name, ranks, microbatches, each)
        except ValueError:
            with pytest.raises(FieldError):
                check_schedule(schedule, ranks, microbatches, each)
            continue
        ours = rank_passes(schedule, ranks, microbatches, each)
        assert theirs == [
            [(kind, stage_of(schedule, ranks, rank, chunk), microbatch) for kind, chunk, microbatch, _ in passes]
            for rank, passes in enumerate(ours)
        ]
        compared += 1
    assert compared > 20
