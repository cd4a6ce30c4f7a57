"""Memory of many configurations equals the predicted memory of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Space, every
from scaleproof.simulator.analysis.planner.estimate.memory import memory_bytes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.peak import FullestPasses, fullest_passes
from scaleproof.simulator.memory.ranks import FIRST_IS_FULLEST
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order

SELECTIVE, FULL, EVERY_THIRD = Recompute(kind="selective"), Recompute(kind="full"), Recompute(kind="full", group=3)
FORMS = tuple(
    map(
        Recompute.model_validate,
        ({"every": 2}, {"layers": 2}, {"products": "every_second"}, {"modules": ["core_attn", "layernorm", "mlp"]}),
    )
)
ALL_ZERO = (0, 1, 2, 3)
LOOPED: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
ZERO_BUBBLE: tuple[ScheduleName, ...] = ("zb_h1", "zb_h2", "zb_v", "dualpipe_v", "interleaved_zero_bubble", "zb_1p")
GPT = "model={kind: gpt, layers: 12, hidden: 512, heads: 8, vocabulary: 1000, sequence: 256, dropout: true, flash: false}"
MIXTURE = (
    "model={kind: llama, layers: 7, hidden: 256, heads: 8, key_heads: 4, vocabulary: 512, sequence: 128, experts: "
    "{count: 8, active: 2, feedforward: 512, dense_layers: 1}}"
)


def space(name: str, *overrides: str, **choices: Any) -> Space:
    """Choices for a shipped scenario, trained by one rank and a framework that supports all stages of ZeRO unless
    overridden."""
    return Space(load(name, ("strategy={kind: hybrid}", "framework=torchtitan", *overrides)), **choices)


SPACES = {
    "gpt": space(
        "gpt3-175b-hybrid-selene", GPT, "batch=96", "training.precision=bf16", ranks=(8, 24, 64), tensor=(1, 2, 4),
        stages=(1, 2, 3, 4, 6), chunks=(1, 2, 3), samples=(1, 2, 3), schedules=LOOPED, zero=ALL_ZERO,
        recompute=(NO_RECOMPUTE, SELECTIVE, FULL, EVERY_THIRD, *FORMS), sequence_parallel=(False, True),
        buckets_bytes=(2.0**16, 1e9),
        orders=(("tensor", "context", "workers", "stages"), ("stages", "tensor", "context", "workers")),
    ),
    # frameworks whose gradients are in buffers, and in both precisions
    "gpt in Megatron": space(
        "gpt3-175b-hybrid-selene", "framework=megatron-core-0.12", GPT.replace("dropout: true", "dropout: false"), "batch=96",
        "training.precision=bf16", ranks=(8, 24), tensor=(1, 2), stages=(1, 2, 3), chunks=(1, 2), samples=(1, 2),
        schedules=LOOPED, zero=(0, 1), recompute=(NO_RECOMPUTE, FULL), sequence_parallel=(False, True),
    ),
    "gpt in DeepSpeed": space(
        "gpt3-175b-hybrid-selene", "framework=megatron-deepspeed-bf16", GPT, "batch=96", "training.precision=bf16",
        ranks=(8, 24), tensor=(1, 2), stages=(1, 2, 3), samples=(1, 2), schedules=("1f1b",), zero=(0, 1, 2),
        recompute=(NO_RECOMPUTE, FULL), buckets_bytes=(2.0**16, 1e9),
    ),
    # 32-bit parameters and residual streams
    "gpt by autocast": space(
        "gpt3-175b-hybrid-selene", "framework=pytorch-ddp", GPT, "batch=96", "training.precision=bf16", ranks=(8, 24),
        stages=(1, 2, 3), samples=(1, 2), schedules=("gpipe", "1f1b"), zero=(0, 1), recompute=(NO_RECOMPUTE, SELECTIVE, FULL),
    ),
    # a framework that keeps gathered inputs if there is one stage
    "llama in nanotron": space(
        "llama-2-7b-fsdp-a100", "framework=nanotron", "training.zero=0", "batch=48", ranks=(8, 16), tensor=(1, 2, 4),
        stages=(1, 2, 4), samples=(1, 2), zero=(0, 1), recompute=(NO_RECOMPUTE,), schedules=("1f1b",),
        sequence_parallel=(False, True),
    ),
    "gpt with tied ends": space(
        "gpt3-175b-hybrid-selene", GPT.replace("dropout", "tied"), "batch=48", "training.optimizer=adafactor", ranks=(12, 48),
        tensor=(1, 4), stages=(1, 2, 3, 4), chunks=(1, 2, 4), samples=(1, 2), schedules=(*LOOPED, *ZERO_BUBBLE), zero=ALL_ZERO,
        recompute=(NO_RECOMPUTE, FULL),
    ),
    "llama": space(
        "llama-2-7b-fsdp-a100", "batch=96", ranks=(8, 32, 64), tensor=(1, 2), context=(1, 2), stages=(1, 2, 8), samples=(1, 2),
        zero=(3,), recompute=(NO_RECOMPUTE, FULL), schedules=("1f1b", "zb_h1", "zb_h2"),
    ),
    "mixture": space(
        "mixtral-8x7b-experts-h100", MIXTURE, "training.accumulate_precision=fp32", "batch=64", ranks=(16, 32), tensor=(1, 2),
        expert=(1, 2, 8), stages=(1, 2, 3), chunks=(1, 2), samples=(1, 2, 4),
        schedules=("1f1b", "interleaved_1f1b", "zb_v", "dualpipe_v", "interleaved_zero_bubble"),
        zero=ALL_ZERO, recompute=(NO_RECOMPUTE, FULL, *FORMS),
    ),
    "convolutions": space(
        "resnet50-ring-p100", "batch=96", ranks=(4, 8, 24), stages=(1, 2, 4, 8), chunks=(1, 2), samples=(1, 4), zero=ALL_ZERO,
        schedules=LOOPED, recompute=(NO_RECOMPUTE, FULL), buckets_bytes=(25 * 2.0**20, 1e9),
    ),
    "cores": space(
        "resnet50-ring-p100", "framework=gloo-cpu", "model=gpt-mini", "cluster=cpu-2core", "batch=24",
        "training.optimizer=adam", ranks=(1, 2), tensor=(1, 2), stages=(1, 2), samples=(1, 2, 3),
        schedules=("gpipe", "1f1b"), zero=ALL_ZERO,
    ),
}  # fmt: skip


def predicted_bytes(configurations: Configurations, row: int) -> float:
    return memory(configurations.scenario(row)).worst.total_bytes


@pytest.mark.parametrize("count", [300, pytest.param(None, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", SPACES)
def test_memory_of_many_configurations_equals_separate_results(name: str, count: int | None) -> None:
    """Of some configurations of each space, and of all."""
    configurations = every(SPACES[name])
    generator = np.random.default_rng(7)
    if count is not None:
        configurations = configurations.take(generator.integers(len(configurations), size=count))
    rows = generator.integers(len(configurations), size=12 if count else 40)
    assert memory_bytes(configurations)[rows] == pytest.approx([predicted_bytes(configurations, row) for row in rows], rel=1e-9)


def most_in_flight(flight: FullestPasses, weights: tuple[float, ...]) -> list[float]:
    """Largest weighted numbers of microbatches with live activations in backward passes over each chunk."""
    _, first, others, kept, _ = flight.candidates.transpose(2, 0, 1)
    return [float((kept[back == 1] @ weights).max()) for back in (first + others).T]


@pytest.mark.parametrize("schedule", sorted(FIRST_IS_FULLEST))
@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (3, 5), (4, 3)])
def test_the_first_of_equivalent_ranks_has_the_peak_memory(schedule: ScheduleName, ranks: int, chunks: int) -> None:
    chunks = 1 if schedule in ("gpipe", "1f1b") else chunks
    for microbatches in (1, 2, ranks, 2 * ranks, 5 * ranks):
        flights = [fullest_passes(schedule, ranks, rank, microbatches, chunks) for rank in range(ranks)]
        allocated = [max(most_in_flight(flight, (1.0,) * chunks)) for flight in flights]
        assert allocated == sorted(allocated, reverse=True)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 1.0, 1.0), (1.0, 4.0, 2.0)])
def test_few_microbatches_give_the_peak_of_all(rank: int, weights: tuple[float, ...]) -> None:
    """Few microbatches give the peak that the order of all passes has."""
    passes = order("interleaved_1f1b", 4, 28, 3)
    allocated = np.zeros(3)
    most = np.zeros(3)
    for kind, chunk in zip(passes.kind[rank].tolist(), passes.chunk[rank].tolist(), strict=True):
        if kind == Pass.BACKWARD:
            most[chunk] = max(most[chunk], allocated @ weights)
        allocated[chunk] += 1 if kind == Pass.FORWARD else -1
    assert most_in_flight(fullest_passes("interleaved_1f1b", 4, rank, 28, 3), weights) == most.tolist()
