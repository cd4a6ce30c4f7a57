"""Degrees that go together, and what is said of those that do not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from simulator.errors import ScenarioError
from simulator.scenario import Scenario

Make = Callable[..., Scenario]
MIXTURE = (
    "model={kind: llama, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, "
    "experts: {count: 8, active: 2, feedforward: 64}}"
)

REFUSED: dict[str, tuple[str, str]] = {
    "{kind: hybrid, workers: 4, shard_over: 3}": ("shard_over", "3 does not divide 4 workers; give 2 or 4"),
    "{kind: hybrid, workers: 4, shard_over: 16}": ("shard_over", "16 does not divide 4 workers; give 4"),
    "{kind: data_parallel, workers: 6, shard_over: 4}": ("shard_over", "4 does not divide 6 workers; give 3 or 6"),
    "{kind: hybrid, workers: 4, expert: 2}": ("expert", "there are no experts to divide; leave expert parallelism out"),
    "{kind: hybrid, workers: 2, order: [tensor, tensor, workers, stages]}": (
        "order",
        "needs each of tensor, context, workers, stages once, the innermost first",
    ),
    "{kind: hybrid, workers: 2, order: [tensor, workers]}": (
        "order",
        "needs each of tensor, context, workers, stages once, the innermost first",
    ),
    "{kind: hybrid, sequence_parallel: true}": (
        "sequence_parallel",
        "sequence parallelism divides what tensor-parallel ranks have; set strategy.tensor, or leave it out",
    ),
    "{kind: hybrid, tensor: 3}": ("tensor", "3 ranks do not divide heads 4; give a divisor of it, such as 2"),
    "{kind: hybrid, context: 5}": ("context", "5 ranks do not divide sequence 32; give a divisor of it, such as 4"),
    "{kind: pipeline, stages: 2, chunks: 2, microbatches: 2, schedule: gpipe}": (
        "chunks",
        "gpipe needs one chunk a rank, got 2; give 1",
    ),
    "{kind: pipeline, stages: 2, microbatches: 2, schedule: interleaved_1f1b}": (
        "chunks",
        "interleaved_1f1b needs several chunks a rank, got 1; give 2",
    ),
    "{kind: pipeline, schedule: interleaved_1f1b}": (
        "chunks",
        "interleaved_1f1b needs several chunks a rank, got 1; give 2",
    ),
    "{kind: pipeline, stages: 1, chunks: 2, schedule: interleaved_1f1b}": (
        "chunks",
        "2 chunks on a rank that has no others beside it; give 1",
    ),
    "{kind: pipeline, stages: 3, chunks: 2, microbatches: 8, schedule: interleaved_1f1b}": ("", ""),
    "{kind: pipeline, stages: 7, microbatches: 8}": ("stages", "7 stages for 6 layers; give at most 6"),
    "{kind: pipeline, stages: 2, balance: [3, 2, 1]}": ("balance", "3 numbers for 2 stages of the model; give one for each"),
    "{kind: pipeline, stages: 2, balance: [3, 4]}": (
        "balance",
        "they add up to 7 blocks, the model has 6; give as many",
    ),
    "{kind: pipeline, stages: 2, microbatches: 5}": ("microbatches", "5 microbatches do not divide 48 samples; give 4"),
    "{kind: data_parallel, workers: 4, microbatches: 7}": ("microbatches", "7 microbatches do not divide 12 samples; give 6"),
    "{kind: data_parallel, workers: 4, algorithm: rings}": ("algorithm", "unknown algorithm 'rings'; give one of"),
    "{kind: data_parallel, workers: 4, algorithm: pairwise}": ("algorithm", "pairwise does not sum"),
    "{kind: data_parallel, workers: 4, prefetch: -1}": ("prefetch", "must be at least 0, got -1"),
    "{kind: data_parallel, workers: 33}": ("", "33 ranks for 32 devices (8 nodes × 4); give at most 32, or set cluster.nodes=9"),
}


@pytest.mark.parametrize("strategy", REFUSED)
def test_what_does_not_go_together_is_refused_with_what_does(small: Make, strategy: str) -> None:
    field, message = REFUSED[strategy]
    where = ".".join(filter(None, ("strategy", field)))
    with pytest.raises(ScenarioError, match=re.escape(f"{where}: {message}")):
        small(f"strategy={strategy}", "batch=48" if "33" not in strategy else "batch=33")
