"""Schedules of a replica's ranks: bubbles, gathers before passes, pieces of passes, messages between ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import COLLECTIVE_STREAM, Kind
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.pipeline.replica import BEGIN, TURN, rank_schedule
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order
from tests.simulator.programs import EVEN, ONLY_COMPUTE, compiled, exchange_s, step_s, work_s

Make = Callable[..., Scenario]
SCHEDULES: tuple[tuple[ScheduleName, int], ...] = (
    ("gpipe", 1), ("1f1b", 1), ("zb_h1", 1), ("interleaved_1f1b", 2), ("looped_bfs", 3), ("zb_v", 2), ("dualpipe_v", 2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("chunks", "stages", "microbatches"),
    [(1, 2, 2), (2, 2, 2), (3, 2, 8), (4, 2, 8), (6, 2, 8), (2, 3, 6), (4, 3, 6), (8, 3, 6), (2, 4, 8), (3, 4, 8), (6, 4, 12)],
)
def test_the_bubble_falls_with_the_chunks(small: Make, chunks: int, stages: int, microbatches: int) -> None:
    """(p − 1) / v of the passes of a rank's m microbatches, of v chunks each: arXiv 2104.04473, section 2.2."""
    schedule = "interleaved_1f1b" if chunks > 1 else "1f1b"
    numbers = f"stages: {stages}, chunks: {chunks}, microbatches: {microbatches}, schedule: {schedule}"
    run = predict(small(EVEN, f"strategy={{kind: pipeline, {numbers}}}", *ONLY_COMPUTE, f"batch={microbatches}"))
    theory = (stages - 1) / (chunks * microbatches + stages - 1)
    assert run.bubble_fraction == pytest.approx(theory, rel=1e-4)


@given(st.sampled_from(SCHEDULES), st.integers(2, 3), st.integers(1, 3), st.booleans(), st.integers(1, 4))
def test_rank_schedules_split_the_passes_of_the_schedule(
    schedule: tuple[ScheduleName, int], stages: int, rounds: int, all_cut: bool, pieces: int
) -> None:
    """Each pass covers every layer once, backward passes from the last layer on; waiting tasks cover none."""
    name, chunks = schedule
    microbatches = 2 * stages * rounds
    plan = Plan(stages=stages, chunks=chunks, microbatches=microbatches, schedule=name)
    each, total = 2 * pieces, stages * chunks
    cuts = [[range(each * s + 2 * i, each * s + 2 * i + 2) for i in range(pieces)] for s in range(total)]
    tasks = rank_schedule(plan, cuts, all_cut, PassTimes())
    works = tasks.kind >= 0
    assert set(tasks.kind[~works]) == ({BEGIN, TURN} if name == "gpipe" else {BEGIN})
    assert (tasks.begin[~works] == tasks.end[~works]).all()
    for rank in range(stages):
        own = tasks.rank == rank
        assert (np.diff(tasks.slot[own]) > 0).all()
        firsts, lasts = np.flatnonzero(own & tasks.first), np.flatnonzero(own & tasks.last)
        passes = order(name, stages, microbatches, chunks)
        assert tasks.kind[firsts].tolist() == passes.kind[rank][passes.slot[rank] >= 0].tolist()
        assert tasks.microbatch[firsts].tolist() == passes.microbatch[rank][passes.slot[rank] >= 0].tolist()
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            forward, stage = tasks.kind[first] == Pass.FORWARD, int(tasks.stage[first])
            begins, ends = tasks.begin[first : last + 1].tolist(), tasks.end[first : last + 1].tolist()
            if not forward:
                begins, ends = begins[::-1], ends[::-1]
            assert begins == [each * stage, *ends[:-1]]
            assert ends[-1] == each * (stage + 1)
    cut = tasks.cut & works
    assert (tasks.kind[cut] != Pass.WEIGHT).all()
    if not all_cut and pieces > 1:
        assert (tasks.kind[cut] == Pass.BACKWARD).all()


SHARDED = "strategy={{kind: data_parallel, workers: 8, prefetch: {prefetch}, microbatches: {microbatches}}}"
# layers of 2 ms each, gathered in half of that, and parameters updated for nothing
LAYERS = (
    "model={kind: mlp, layers: 8, inputs: 512, hidden: 512, outputs: 512}",
    "cluster.node={devices: 8, link: {bandwidth: 1 GB/s, latency: 0}}",
    "cluster.device.memory_bandwidth=1 EB/s",
    "cluster.device.layer_overhead=2 ms",
    "batch={per_worker: 4}",
)


def sharded_s(small: Make, prefetch: int, *more: str, microbatches: int = 1) -> float:
    sharded = SHARDED.format(prefetch=prefetch, microbatches=microbatches)
    return step_s(compiled(small(*LAYERS, sharded, "training={zero: 3}", *more)))


def test_only_prefetched_gathers_are_hidden(small: Make) -> None:
    """All gathers are exposed if each waits for the previous pass; one ahead hides all but the first of the step."""
    gather_s = 7 / 8 * (512 * 512 + 512) * 4 / 1e9
    passes_s = 2 * 8 * 2e-3 + 6 * 4 * 8 * 512 * 512 / 1e12 - 2 * 4 * 512 * 512 / 1e12
    # the sum of the first layer's gradients is all that is left behind the last pass
    assert sharded_s(small, 1) == pytest.approx(passes_s + gather_s + gather_s, rel=1e-2)
    # of the backward pass sums are under way when the next gather begins, which goes first
    assert sharded_s(small, 0) == pytest.approx(passes_s + 16 * gather_s + gather_s, rel=0.2)


@pytest.mark.parametrize("overhead", ["0", "200 us", "1 ms", "20 ms"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_gathering_further_ahead_is_never_slower(small: Make, overhead: str, microbatches: int) -> None:
    more = f"cluster.device.layer_overhead={overhead}"
    times = [sharded_s(small, prefetch, more, microbatches=microbatches) for prefetch in (0, 1, 2, 3, 8)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


@pytest.mark.parametrize(
    "numbers",
    [
        "stages: 4, microbatches: 8, schedule: 1f1b",
        "stages: 4, microbatches: 8, schedule: gpipe",
        "stages: 2, chunks: 3, microbatches: 8, schedule: interleaved_1f1b",
        "stages: 2, chunks: 2, microbatches: 4, schedule: zb_v",
        "stages: 3, microbatches: 6, schedule: zb_h1",
    ],
)
@pytest.mark.parametrize("network", ["10 Gbit/s", "100 Gbit/s"])
def test_overlapped_sends_are_never_slower(small: Make, numbers: str, network: str) -> None:
    separate_s, overlapped_s = (
        predict(
            small(
                f"strategy={{kind: pipeline, {numbers}, overlap_sends: {flag}}}",
                "cluster.node.devices=1", f"cluster.network.bandwidth={network}",
            )
        ).step_time_s
        for flag in ("false", "true")
    )  # fmt: skip
    assert overlapped_s <= separate_s * (1 + 1e-9)


@pytest.mark.parametrize(
    "numbers",
    [
        "stages: 3, microbatches: 6, schedule: 1f1b",
        "stages: 2, chunks: 2, microbatches: 4, schedule: interleaved_1f1b",
        "stages: 3, chunks: 2, microbatches: 6, schedule: zb_v",
    ],
)
@pytest.mark.parametrize("overlap_sends", ["false", "true"])
def test_messages_to_one_rank_are_sequential(small: Make, numbers: str, overlap_sends: str) -> None:
    """Messages arrive in the order of sending, however slow the network."""
    strategy = f"strategy={{kind: pipeline, {numbers}, overlap_sends: {overlap_sends}}}"
    program = compiled(small(strategy, "cluster.node.devices=1", "cluster.network.bandwidth=10 Mbit/s"))
    timeline = simulate(program, 2)
    rows = np.flatnonzero(program.kind == Kind.TRANSFER)
    for pair in {(program.rank[row], program.peer[row]) for row in rows.tolist()}:
        own = rows[(program.rank[rows] == pair[0]) & (program.peer[rows] == pair[1])]
        own = own[np.argsort(timeline.end_s[0, own])]
        start_s, end_s = timeline.start_s[0, own], timeline.end_s[0, own]
        assert (start_s[1:] >= end_s[:-1]).all()


@pytest.mark.parametrize("tensor", [2, 4])
def test_split_sends_move_a_part_per_tensor_rank_and_gather_it(small: Make, tensor: int) -> None:
    """Between nodes each message has 1 / t of the bytes; the shards are then gathered inside the node."""
    whole, parts = (
        compiled(small(f"strategy={{kind: hybrid, stages: 2, tensor: {tensor}, microbatches: 2, order: "
                       f"[tensor, context, workers, stages], split_sends: {flag}}}", f"cluster.node.devices={tensor}"))
        for flag in ("false", "true")
    )  # fmt: skip
    sent = [program.amount[program.kind == Kind.TRANSFER] for program in (whole, parts)]
    assert sent[1] == pytest.approx(sent[0] / tensor)
    late = [program.latency_s[program.kind == Kind.TRANSFER] for program in (whole, parts)]
    gather_s = 5e-6 * math.log2(tensor) + (tensor - 1) / tensor * sent[0][0] / 10e9
    assert late[1] - late[0] == pytest.approx(gather_s)


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h1", 1), ("zb_v", 2), ("interleaved_zero_bubble", 2)])
def test_input_and_weight_gradient_passes_add_up_to_the_backward_pass(small: Make, schedule: str, chunks: int) -> None:
    numbers = f"tensor: 2, stages: 2, chunks: {chunks}, microbatches: 4"
    halves = compiled(small(f"strategy={{kind: hybrid, {numbers}, schedule: {schedule}}}", "batch=4"))
    whole = compiled(small("strategy={kind: hybrid, tensor: 2, stages: 2, microbatches: 4}", "batch=4"))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert work_s(halves, phase).sum() == pytest.approx(work_s(whole, phase).sum())
        assert exchange_s(halves, phase).sum() == pytest.approx(exchange_s(whole, phase).sum())
    assert (halves.stream == COLLECTIVE_STREAM).sum() == 0


@pytest.mark.parametrize(("schedule", "backward_s"), [("gpipe", 2e-3), ("zb_h1", 3e-3 + 4e-3)])
def test_each_pass_of_a_stage_takes_the_hosts_time_in_addition(small: Make, schedule: str, backward_s: float) -> None:
    """The first stage divides no backward pass."""
    host = "{stage: {forward: 1 ms, loss: 5 ms, backward: 2 ms, inputs: 3 ms, weights: 4 ms}}"
    numbers = f"strategy={{kind: pipeline, stages: 2, microbatches: 4, schedule: {schedule}}}"
    bare, hosted = (
        compiled(small(numbers, "batch=4", f"framework={one}")) for one in ("ideal", f"{{base: ideal, host: {host}}}")
    )
    for phase, more_s in ((Phase.FORWARD, 4 * (2 * 1e-3 + 5e-3)), (Phase.BACKWARD, 4 * (2e-3 + backward_s))):
        assert work_s(hosted, phase).sum() == pytest.approx(work_s(bare, phase).sum() + more_s)
