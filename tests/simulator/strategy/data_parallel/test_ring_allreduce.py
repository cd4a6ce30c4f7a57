"""Gradient synchronisation: bytes that each strategy moves, when they move, and what they overlap with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import events
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import (
    FREES_ENDS,
    compiled,
    ends_bytes,
    freeing_ends,
    moved_bytes,
    ring_bytes,
    separate_workers,
    step_s,
    work_s,
)

Make = Callable[..., Scenario]
MIXTURE = (
    "model={kind: llama, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, "
    "experts: {count: 8, active: 2, feedforward: 64}}"
)


def averaged(small: Make, numbers: str, *more: str) -> Program:
    return compiled(small(f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 12}", *more))


@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("gathers", ["false", "true"])
@pytest.mark.parametrize("workers", [2, 4, 12])
def test_sharding_states_moves_the_bytes_of_plain_averaging(small: Make, zero: int, gathers: str, workers: int) -> None:
    """A reduce-scatter and an all-gather move the bytes of an all-reduce: arXiv 1910.02054, section 7.1."""
    plain = averaged(small, f"workers: {workers}")
    shared = averaged(small, f"workers: {workers}, overlap_gather: {gathers}", f"training={{zero: {zero}}}")
    assert moved_bytes(shared) == pytest.approx(moved_bytes(plain))


@pytest.mark.parametrize("workers", [2, 4, 12])
@pytest.mark.parametrize(("reshard", "times"), [("true", 1.5), ("false", 1.0)])
def test_sharding_parameters_moves_1_5_times_the_bytes(small: Make, workers: int, reshard: str, times: float) -> None:
    """Parameters are gathered for each pass, or once if they are kept between both: arXiv 1910.02054, section 7.2."""
    plain = averaged(small, f"workers: {workers}")
    shared = averaged(small, f"workers: {workers}, reshard: {reshard}", "training={zero: 3}", FREES_ENDS)
    assert moved_bytes(shared) == pytest.approx(times * moved_bytes(plain))


@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("sharing", [2, 8])
@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("scatter", ["microbatch", "step"])
@pytest.mark.parametrize("model", ["model.layers=6", MIXTURE])
def test_parameters_of_fsdp_s_root_are_gathered_once_a_microbatch(
    small: Make, model: str, scatter: str, microbatches: int, sharing: int, context: int
) -> None:
    """FSDP does not free those of its root, embedding and head, after the forward pass (torch.distributed.fsdp)."""
    numbers = f"workers: 8, context: {context}, shard_over: {sharing}, scatter: {scatter}, microbatches: {microbatches}"
    given = model, "training={zero: 3}", "batch={per_worker: 12}", "cluster.nodes=16", "cluster.collectives.library=gloo"
    freeing, keeping = (averaged(small, numbers, *given, *more) for more in ((FREES_ENDS,), ()))
    again_bytes = ring_bytes(sharing * context, ends_bytes(small(*given)))
    assert moved_bytes(freeing) - moved_bytes(keeping) == pytest.approx(microbatches * again_bytes)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("zero", "reshard", "ways"), [(0, "true", 0), (1, "true", 0), (2, "true", 1), (3, "true", 3), (3, "false", 2)]
)
def test_bytes_repeated_for_every_microbatch_equal_the_expected_ones(
    small: Make, microbatches: int, zero: int, reshard: str, ways: int
) -> None:
    """Rounds of the ring per step: of two, or three with resharding, some happen for each microbatch, the others once."""
    program = averaged(
        small,
        f"workers: 4, reshard: {reshard}, microbatches: {microbatches}",
        f"training={{zero: {zero}}}",
        *freeing_ends(zero),
    )
    once = max(0, 2 - ways)
    size_bytes = 4 * small().model.parameters()
    assert moved_bytes(program) == pytest.approx((once + microbatches * ways) * ring_bytes(4, size_bytes))


@pytest.mark.parametrize(("zero", "ways"), [(0, 2 * 4), (1, 4 + 2), (2, 4 + 2), (3, 4 + 2 * 2)])
def test_gradients_can_have_more_bytes_than_gathered_parameters(small: Make, zero: int, ways: float) -> None:
    """ways: bytes per element times rounds of the ring."""
    program = averaged(
        small, "workers: 4", f"training={{zero: {zero}, precision: bf16, reduce_precision: fp32}}",
        "cluster.device.peak={bf16: 1 TFLOP/s}", *freeing_ends(zero),
    )  # fmt: skip
    assert moved_bytes(program) == pytest.approx(ways * ring_bytes(4, small().model.parameters()))


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("sharing", [1, 2, 4, 8])
@pytest.mark.parametrize("context", [1, 2])
def test_hybrid_sharding_sums_shards_between_groups(small: Make, zero: int, sharing: int, context: int) -> None:
    """Rounds of the ring inside groups of g workers; between groups an all-reduce of a shard: arXiv 2304.11277, 3.2.2."""
    workers = 8
    program = averaged(
        small, f"workers: {workers}, context: {context}, shard_over: {sharing}", f"training={{zero: {zero}}}",
        "cluster.nodes=16", "cluster.collectives.library=gloo", *freeing_ends(zero),
    )  # fmt: skip
    size_bytes = 4 * small().model.parameters()
    inside, groups = sharing * context, workers // sharing
    ways = 3 if zero == 3 else 2
    between_bytes = 2 * ring_bytes(groups, size_bytes / inside)
    assert moved_bytes(program) == pytest.approx(ways * ring_bytes(inside, size_bytes) + between_bytes)


@pytest.mark.parametrize(("zero", "ways"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_context_parallel_ranks_synchronise_gradients_like_workers(small: Make, zero: int, ways: int) -> None:
    """Context ranks have the same parameters and gradients of different tokens."""
    program = averaged(small, "workers: 1, context: 4", f"training={{zero: {zero}}}", *freeing_ends(zero))
    assert moved_bytes(program) == pytest.approx(ways * ring_bytes(4, 4 * small().model.parameters()))


@pytest.mark.parametrize(("workers", "context"), [(4, 1), (2, 2), (1, 4)])
def test_compression_depends_on_the_number_of_ranks(small: Make, workers: int, context: int) -> None:
    """A top-k sum gathers the values and indices of all ranks and adds them up."""
    program = averaged(small, f"workers: {workers}, context: {context}, compression: {{kind: top_k, share: 0.01}}")
    four = averaged(small, "workers: 4, compression: {kind: top_k, share: 0.01}")
    assert moved_bytes(program) == pytest.approx(moved_bytes(four))
    assert work_s(program, Phase.OPTIMIZER) == pytest.approx(work_s(four, Phase.OPTIMIZER))


def test_compressed_gradients_take_fewer_bytes(small: Make) -> None:
    plain, half, few = (
        moved_bytes(averaged(small, f"workers: 4{more}"))
        for more in ("", ", compression: {kind: bf16}", ", compression: {kind: top_k, share: 0.01}")
    )
    assert half == pytest.approx(plain / 2)
    # each of 4 gets 8 bytes for a hundredth of the values from each other, where it got and sent two ways of 4 bytes
    assert few == pytest.approx(plain * (4 * 0.01 * 8) / (2 * 4), rel=0.05)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("expert", [1, 2, 4])
@pytest.mark.parametrize("bucket", ["1 GiB", "20 KiB", "90 KiB"])
def test_experts_are_averaged_over_the_workers_that_have_the_same(small: Make, zero: int, expert: int, bucket: str) -> None:
    """Experts shared by e workers are synchronised by one in e workers, the rest of the model by all."""
    workers = 8
    scenario = small(
        MIXTURE, f"strategy={{kind: hybrid, workers: {workers}, expert: {expert}, bucket: {bucket}, overlap: true}}",
        f"training={{zero: {zero}}}", "batch=8", "cluster.collectives.library=gloo", *freeing_ends(zero),
    )  # fmt: skip
    layers = job_of(scenario).layers
    expert_bytes = 4 * sum(layer.expert_parameters for layer in layers)
    dense_bytes = 4 * sum(layer.parameters for layer in layers) - expert_bytes
    ways = 3 if zero == 3 else 2
    theory = ways * (ring_bytes(workers, dense_bytes) + ring_bytes(workers // expert, expert_bytes))
    assert moved_bytes(compiled(scenario)) == pytest.approx(theory)
    update = work_s(compiled(scenario), Phase.OPTIMIZER)
    whole = 1 if zero == 0 else workers
    updated = dense_bytes / whole + expert_bytes / (1 if zero == 0 else workers // expert)
    # sgd reads the weight and its gradient and writes the weight
    assert update == pytest.approx(3 * updated / 100e9)


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h1", 1), ("zb_v", 2), ("interleaved_zero_bubble", 2)])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_delayed_weight_gradients_are_synchronised_later(small: Make, schedule: str, chunks: int, zero: int) -> None:
    """With divided backward passes, sums follow the weight gradient: a microbatch's last task on its stage."""
    program = averaged(
        small, f"workers: 2, stages: 2, chunks: {chunks}, schedule: {schedule}, microbatches: 4, overlap: true",
        f"training={{zero: {zero}}}",
    )  # fmt: skip
    backward = np.flatnonzero((program.kind == Kind.COMPUTE) & (program.phase == Phase.BACKWARD))
    of = np.stack([program.rank, program.stage, program.microbatch], axis=1).tolist()
    last = {tuple(of[row]): row for row in backward.tolist()}
    before = program.dependencies.lists()
    for row in sums(program):
        assert [last[tuple(of[made])] for made in before[row]] == before[row]


def sums(program: Program) -> list[int]:
    """Rows of the collectives that follow a backward pass and that no pass waits for."""
    before = program.dependencies.lists()
    passes = np.flatnonzero(np.isin(program.phase, (Phase.FORWARD, Phase.BACKWARD)))
    gathers = {after for row in passes.tolist() for after in before[row]}
    rows = set(np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist()) - gathers
    found = sorted(row for row in rows if all(program.phase[made] == Phase.BACKWARD for made in before[row]))
    assert found
    return found


WORDS = 256 * 64
TIED, UNTIED = (
    f"model={{kind: gpt, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, tied: {tied}}}"
    for tied in ("true", "false")
)


def untied_and_tied(small: Make, numbers: str, *more: str) -> tuple[Program, Program]:
    """The same ranks; the last has an untied head, or a copy of the embedding, with equal numbers of parameters."""
    return averaged(small, numbers, UNTIED, *more), averaged(small, numbers, TIED, *more)


@pytest.mark.parametrize(
    "numbers",
    [
        "stages: 2",
        "workers: 2, stages: 3, microbatches: 3, overlap: true, bucket: 20 KiB",
        "workers: 2, stages: 3, chunks: 2, schedule: interleaved_1f1b, microbatches: 3",
        "workers: 2, context: 2, stages: 2, microbatches: 3",
        "workers: 2, stages: 2, schedule: zb_h1, microbatches: 4",
        "workers: 16, stages: 2, microbatches: 3",
    ],
)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_tied_embedding_gradients_at_both_pipeline_ends_are_summed(small: Make, numbers: str, zero: int) -> None:
    """Once a step between the two, on top of what replicas sum (Megatron-LM, arXiv 2104.04473): all of it, or the part of it
    that a rank still has."""
    separate, tied = untied_and_tied(small, numbers, f"training={{zero: {zero}}}")
    plan = small(f"strategy={{kind: hybrid, {numbers}}}").strategy.plan
    share = plan.workers * plan.context if zero >= 2 else 1
    assert moved_bytes(tied) - moved_bytes(separate) == pytest.approx(2 * ring_bytes(2, 4 * WORDS / share))
    assert work_s(tied, Phase.OPTIMIZER) == pytest.approx(work_s(separate, Phase.OPTIMIZER))


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_summing_tied_embedding_gradients_takes_a_collective_of_two(small: Make, tensor: int) -> None:
    """Every tensor-parallel rank sums its part over the same network card."""
    numbers = f"stages: 4, tensor: {tensor}, microbatches: 4"
    alone = ("cluster.node.devices=" + str(tensor), "cluster.network.latency=0", "framework=ideal")
    separate, tied = untied_and_tied(small, numbers, *alone)
    cluster = small(*alone, "cluster.node.devices=1").cluster
    assert step_s(tied) - step_s(separate) == pytest.approx(collective_time("all_reduce", 4 * WORDS, 2, cluster))


@pytest.mark.parametrize(
    "numbers",
    [
        "workers: 16, stages: 2, microbatches: 2",
        "workers: 8, stages: 2, tensor: 2, microbatches: 4",
        "workers: 6, stages: 4, tensor: 2, microbatches: 4",
        "workers: 4, stages: 4, context: 2, microbatches: 4, order: [stages, tensor, context, workers]",
    ],
)
def test_all_workers_sum_tied_embedding_gradients_concurrently(
    small: Make, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equivalent workers are modelled once; modelled individually they take as long, with either engine."""

    def program() -> Program:
        return averaged(small, numbers, TIED, "cluster.nodes=16")

    folded_s = step_s(program())
    separate_workers(monkeypatch)
    assert step_s(program()) == pytest.approx(folded_s)
    assert float(np.diff(events.simulate(program(), 3).step_ends_s())[-1]) == pytest.approx(folded_s)


@pytest.mark.parametrize("numbers", ["workers: 2", "workers: 2, stages: 2, chunks: 2, schedule: zb_v, microbatches: 4"])
def test_tied_embeddings_on_one_rank_are_stored_once(small: Make, numbers: str) -> None:
    """The same holds for the first rank of a V-shaped pipeline."""
    separate, tied = untied_and_tied(small, numbers)
    assert moved_bytes(separate) - moved_bytes(tied) == pytest.approx(2 * ring_bytes(2, 4 * WORDS))


def served(small: Make, numbers: str, *more: str) -> Program:
    return averaged(small, f"{numbers}, servers: 2", "cluster.nodes=16", *more)


@pytest.mark.parametrize("expert", [1, 2, 4])
def test_servers_update_the_experts_of_all_workers(small: Make, expert: int) -> None:
    """Equal bytes however many workers share the experts; each worker pushes and pulls its own."""
    program = served(small, f"workers: 4, expert: {expert}", MIXTURE)
    layers = small(MIXTURE).model.build_layers()
    experts = sum(layer.expert_parameters for layer in layers)
    parameters = sum(layer.parameters for layer in layers)
    sizes_bytes = program.amount[program.kind == Kind.TRANSFER]
    # each of two servers has half of all that a worker has
    assert sizes_bytes == pytest.approx(4 * (parameters - experts + experts / expert) / 2)
    assert len(sizes_bytes) > 0
    assert updates_s(program) == pytest.approx(updates_s(served(small, "workers: 4", MIXTURE)))


def updates_s(program: Program) -> float:
    """Seconds of the updates of all buckets of a server, each counted once."""
    rows = np.flatnonzero(program.kind == Kind.SERVE)
    found = {(program.rank[row], program.bucket[row]): program.update_s[row] for row in rows.tolist()}
    servers = {server for server, _ in found}
    return float(sum(found.values()) / len(servers))


def test_servers_update_tied_embeddings_pushed_by_two_stages_once(small: Make) -> None:
    separate, tied = (served(small, "workers: 2, stages: 2, microbatches: 2", model) for model in (UNTIED, TIED))
    assert moved_bytes(tied, Kind.TRANSFER) == pytest.approx(moved_bytes(separate, Kind.TRANSFER))
    words = small(UNTIED).model.parameters() - small(TIED).model.parameters()
    assert words == WORDS
    update_s = small(UNTIED).cluster.update_s(words / 2, "sgd", "fp32")
    assert updates_s(separate) - updates_s(tied) == pytest.approx(update_s)
    assert updates_s(tied) > 0


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_stages_without_weights_have_no_gradient_synchronisation(small: Make, zero: int, overlap: str) -> None:
    """The second tower of a siamese network has no weights of its own."""
    numbers = f"workers: 2, stages: 4, microbatches: 2, overlap: {overlap}"
    scenario = small(f"strategy={{kind: hybrid, {numbers}}}", "model=siamese-mlp", "batch.total=48", f"training.zero={zero}")
    updated = [
        sum(job_of(scenario).layers[i].parameters for i in stage) for stage in stage_layers(scenario.strategy, job_of(scenario))
    ]
    program = compiled(scenario)
    summing = np.unique(program.stage[(program.kind == Kind.COLLECTIVE) & (program.amount > 0)])
    assert 0 in updated
    assert summing.tolist() == [stage for stage, parameters in enumerate(updated) if parameters]
