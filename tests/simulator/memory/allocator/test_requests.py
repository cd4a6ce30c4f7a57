"""Passes of a rank: repetitions are left out where they do not change what is allocated."""

from __future__ import annotations

import pytest

from scaleproof.simulator.memory.allocator.requests import rank_passes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.pipeline.schedules import Pass


def passes(schedule: str, stages: int, microbatches: int, chunks: int = 1, rank: int = 0) -> list[tuple[Pass, int, int]]:
    fields = f"stages: {stages}, schedule: {schedule}, chunks: {chunks}, microbatches: {microbatches}"
    scenario = load("llama-2-7b-fsdp-a100", [f"strategy={{kind: hybrid, workers: 1, {fields}}}", f"batch={microbatches}"])
    return [tuple(each) for each in rank_passes(MemoryInputs(scenario), rank)]


def counts(order: list[tuple[Pass, int, int]]) -> list[int]:
    """Microbatches in flight after each pass."""
    result = [0]
    for kind, _, _ in order:
        result.append(result[-1] + {Pass.FORWARD: 1, Pass.BACKWARD: -1, Pass.INPUT: -1, Pass.WEIGHT: 0}[kind])
    return result


def test_one_rank_alternates_and_is_kept_three_times() -> None:
    order = passes("1f1b", 1, 64)
    assert order == [(kind, 0, microbatch) for microbatch in range(3) for kind in (Pass.FORWARD, Pass.BACKWARD)]


def test_the_passes_of_few_microbatches_are_all_kept() -> None:
    assert len(passes("1f1b", 4, 4)) == 2 * 4
    assert len(passes("gpipe", 4, 64)) == 2 * 64


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1), ("zb_h2", 1), ("interleaved_zero_bubble", 2), ("dualpipe_v", 2)],
)
@pytest.mark.parametrize("rank", [0, 3])
def test_many_microbatches_need_no_more_passes(schedule: str, chunks: int, rank: int) -> None:
    few, many = (passes(schedule, 4, microbatches, chunks, rank) for microbatches in (64, 128))
    assert len(few) == len(many) < 64 * 2 * chunks
    assert max(counts(few)) == max(counts(many))
    assert counts(many)[-1] == 0
    # all of what is left is freed, and nothing twice
    assert sum(kind == Pass.INPUT for kind, _, _ in many) == sum(kind == Pass.WEIGHT for kind, _, _ in many)
