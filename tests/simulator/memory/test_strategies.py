"""Memory of each strategy: divided and additional bytes, as papers and manuals state them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.peak import fullest_passes
from scaleproof.simulator.memory.result import RankMemory
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order, peak_activations
from tests.simulator.programs import hybrid

Make = Callable[..., Scenario]

# Parameters are all, and activations nothing; the reverse; and something of both.
HEAVY = ("model={kind: mlp, layers: 8, inputs: 1024, hidden: 1024, outputs: 1024}", "batch=16")
GPT = "model={kind: gpt, layers: 16, hidden: 1024, heads: 16, vocabulary: 64, sequence: 512, dropout: true, flash: false}"
LLAMA = "{kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256}"
STATES = ("parameters", "gradients", "master_parameters", "optimizer_states")
ON = ("cluster=selene-a100",)


def trained_by(name: str, **memory: object) -> str:
    """A shipped framework with some of its memory fields changed."""
    fields = ", ".join(f"{field}: {str(value).lower()}" for field, value in memory.items())
    return f"framework={{base: {name}, memory: {{{fields}}}}}"


# so that the peak is not in the optimizer's step
BARE = trained_by("megatron-core-0.12", main_gradients=False)


def states_of(rank: RankMemory) -> float:
    return sum(rank.holders_bytes[name] for name in STATES)


def training(**fields: object) -> str:
    return f"training={{optimizer: adam, {', '.join(f'{name}: {value}' for name, value in fields.items())}}}"


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("precision", "gradients", "zero", "kept", "shared"),
    [
        # bytes of a parameter, kept and shared out: Megatron-Core's manual, distributed optimizer
        ("fp16", "fp16", 0, 20, 0),
        ("fp16", "fp16", 1, 4, 16),
        ("bf16", "fp32", 0, 18, 0),
        ("bf16", "fp32", 1, 6, 12),
        ("fp32", "fp32", 0, 16, 0),
        ("fp32", "fp32", 1, 8, 8),
        # PyTorch's FSDP: 32-bit shards of parameters, gradients and two moments
        ("bf16", "fp32", 3, 0, 16),
    ],
)
def test_bytes_per_parameter_equal_the_expected_ones(
    small: Make, workers: int, precision: str, gradients: str, zero: int, kept: int, shared: int
) -> None:
    framework = "framework=megatron-core-0.12" if zero < 3 else "framework=pytorch-fsdp2"
    accumulated = training(precision=precision, zero=zero, accumulate_precision=gradients)
    scenario = small(*HEAVY, *ON, framework, hybrid(workers=workers), accumulated)
    each = states_of(memory(scenario).worst) / scenario.model.parameters()
    assert each == pytest.approx(kept + shared / workers, rel=0.01)


def test_nemo_stores_the_low_16_bits_of_master_weights(small: Make) -> None:
    scenario = small(*HEAVY, *ON, "framework=nemo", hybrid(workers=4), training(precision="bf16", zero=1))
    assert states_of(memory(scenario).worst) / scenario.model.parameters() == pytest.approx(4 + 10 / 4, rel=0.01)


def test_deepspeed_copies_its_gradient_partition(small: Make) -> None:
    """A whole gradient in 16 bits, or also one in 32 bits; a rank's part has 8 bytes more, or none."""
    base = (*HEAVY, *ON, training(precision="bf16", zero=1), hybrid(workers=4, microbatches=4))
    wide, narrow = (small(*base, f"framework={name}") for name in ("megatron-deepspeed-bf16", "megatron-deepspeed"))
    parameters = wide.model.parameters()
    assert states_of(memory(narrow).worst) / parameters == pytest.approx(4 + 20 / 4, rel=0.01)
    assert states_of(memory(wide).worst) / parameters == pytest.approx(8 + 12 / 4, rel=0.01)


def test_context_parallel_ranks_share_states(small: Make) -> None:
    fields = (GPT.replace("flash: false", "flash: true"), training(zero=1), "batch=4")
    separate, together = (memory(small(*fields, hybrid(workers=w, context=c))).worst for w, c in ((4, 1), (1, 4)))
    assert states_of(separate) == states_of(together)


def test_each_sharding_group_has_a_full_copy_of_states(small: Make) -> None:
    """Hybrid sharding: over two of four workers as over two."""
    fields = (*HEAVY, training(zero=3))
    two, grouped, four = (
        states_of(memory(small(*fields, f"strategy={{kind: data_parallel, {strategy}}}")).worst)
        for strategy in ("workers: 2", "workers: 4, shard_over: 2", "workers: 4")
    )
    assert grouped == two == pytest.approx(2 * four)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_tensor_parallel_memory_equals_published_formulas(small: Make, tensor: int, sequence: bool, recompute: str) -> None:
    """arXiv 2205.05198, equations 2, 4 and 6, table 2: bytes of a layer in units of s·b·h."""
    if sequence and tensor == 1:
        return
    scores = 0.0 if recompute == "selective" else 5 * 16 * 512 / 1024
    each = (34 + scores) / tensor if sequence else 10 + (24 + scores) / tensor
    if recompute == "full":
        each = 2 / tensor if sequence else 2
    strategy = hybrid(stages=4, microbatches=8, tensor=tensor, sequence_parallel=str(sequence).lower())
    allocated = memory(small(GPT, *ON, BARE, strategy, "batch=16", training(precision="fp16", recompute=recompute)))
    sbh = 512 * (16 / 8) * 1024
    # stages have four layers; the second three microbatches of them in flight, the third two
    layers = [rank.holders_bytes["activations"] / sbh for rank in allocated.ranks[1:3]]
    # the fullest moment may come when a layer is through
    assert layers == pytest.approx([3 * 4 * each, 2 * 4 * each], abs=each if recompute == "full" else None)


@pytest.mark.parametrize("context", [2, 4])
def test_context_parallel_ranks_divide_activations(small: Make, context: int) -> None:
    on = f"model={LLAMA}", "framework=megatron-core-0.12"
    one, many = (memory(small(*on, "batch=1", hybrid(context=c))).worst.holders_bytes for c in (1, context))
    for holder in ("activations", "logits"):
        assert many[holder] == pytest.approx(one[holder] / context)


@pytest.mark.parametrize(("stages", "chunks"), [(4, 2), (4, 4), (2, 8)])
def test_interleaving_needs_more_memory(small: Make, stages: int, chunks: int) -> None:
    """arXiv 2205.05198, section 4.2.3: the first stage of p with v chunks holds 1 + (p − 1) / (p · v) times as much."""
    model = GPT.replace("dropout: true", "dropout: false")
    fields = (model, *ON, BARE, "batch=64", training(precision="fp16", recompute="full"))
    plain = memory(small(*fields, hybrid(stages=stages, microbatches=32)))
    looped = memory(small(*fields, hybrid(stages=stages, microbatches=32, chunks=chunks, schedule="interleaved_1f1b")))
    allocated, more = (one.ranks[0].holders_bytes["activations"] for one in (plain, looped))
    # 16 layers, each of which keeps its input, of 32 microbatches of two samples
    assert allocated == 16 * 2 * 512 * 2 * 1024
    assert more / allocated == pytest.approx(1 + (stages - 1) / (stages * chunks))


SCHEDULES: dict[ScheduleName, int] = {
    "gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2, "looped_bfs": 2, "zb_h1": 1, "zb_h2": 1, "zb_1p": 1, "zb_2p": 1,
    "interleaved_zero_bubble": 2, "zb_v": 2, "dualpipe_v": 2,
}  # fmt: skip


@given(
    st.sampled_from(sorted(SCHEDULES)), st.integers(1, 4), st.integers(1, 3),
    st.lists(st.floats(0, 100), min_size=2, max_size=2), st.lists(st.floats(0, 100), min_size=2, max_size=2),
)  # fmt: skip
def test_microbatches_in_flight_follow_the_order_of_passes(
    schedule: ScheduleName, ranks: int, rounds: int, kept: list[float], left: list[float]
) -> None:
    """Activations before each pass, counted pass by pass and compared with the candidates for the peak."""
    chunks, microbatches = SCHEDULES[schedule], 2 * ranks * rounds
    passes, most_of_rank = order(schedule, ranks, microbatches, chunks), []
    for rank in range(ranks):
        _, first, others, kept_counts, left_counts = fullest_passes(
            schedule, ranks, rank, microbatches, chunks
        ).candidates.transpose(2, 0, 1)
        if schedule in WHOLE:
            left_counts = np.zeros_like(kept_counts)
        bytes_before = kept_counts @ kept[:chunks] + left_counts @ left[:chunks]
        allocated, most, in_backward = 0.0, 0.0, [0.0] * chunks
        for kind, chunk in zip(passes.kind[rank].tolist(), passes.chunk[rank].tolist(), strict=True):
            most = max(most, allocated)
            if kind in (Pass.BACKWARD, Pass.INPUT):
                in_backward[chunk] = max(in_backward[chunk], allocated)
            changes = {Pass.FORWARD: kept[chunk], Pass.BACKWARD: -kept[chunk], Pass.INPUT: left[chunk] - kept[chunk]}
            allocated += changes.get(kind, -left[chunk] if kind == Pass.WEIGHT else 0.0)
        assert allocated == pytest.approx(0, abs=1e-9)
        assert bytes_before.max() == pytest.approx(most, abs=1e-9)
        is_back = first + others
        for chunk in range(chunks):
            assert bytes_before[is_back[:, chunk] == 1].max() == pytest.approx(in_backward[chunk], abs=1e-9)
        most_of_rank.append((kept_counts.sum(axis=1) + left_counts.sum(axis=1)).max())
    assert most_of_rank == peak_activations(schedule, ranks, microbatches, chunks).tolist()


def test_memory_of_separate_weight_gradients_equals_the_paper(small: Make) -> None:
    """arXiv 2401.10241, table 1: of s·b·h · (34 + 5as/h) bytes of a layer 32 are kept until the gradients of its weights."""
    fields = (GPT, *ON, "batch=32", training(precision="fp16"))
    sbh, parts = 512 * (32 / 16) * 1024, 5 * 16 * 512 / 1024
    for schedule in ("zb_h1", "zb_h2"):
        counts = fullest_passes(schedule, 4, 1, 16, 1).candidates[:, 0, 3:]
        expected = max(4 * (allocated * (34 + parts) + left * 32) for allocated, left in counts.tolist())
        allocated = memory(small(*fields, hybrid(stages=4, microbatches=16, schedule=schedule))).ranks[1]
        assert allocated.holders_bytes["activations"] / sbh == pytest.approx(expected, rel=0.1)


def test_the_last_stage_stores_a_copy_of_tied_weights(small: Make) -> None:
    def parameters(tied: bool, **fields: object) -> float:
        model = (
            f"model={{kind: gpt, layers: 4, hidden: 64, heads: 4, vocabulary: 512, sequence: 32, tied: {str(tied).lower()}}}"
        )
        ranks = memory(small(model, "batch=8", hybrid(**fields))).ranks
        return sum(rank.holders_bytes["parameters"] for rank in ranks) / 4

    table = 512 * 64
    assert parameters(False, stages=1) - parameters(True, stages=1) == table
    assert parameters(False, stages=2, microbatches=4) == parameters(True, stages=2, microbatches=4)
    # a V has both on the first rank
    folded = {"stages": 2, "chunks": 2, "schedule": "zb_v", "microbatches": 4}
    assert parameters(False, **folded) - parameters(True, **folded) == table


@pytest.mark.parametrize(
    ("fields", "layers"), [("prefetch: 0", 1), ("prefetch: 1", 2), ("prefetch: 3", 4), ("reshard: false", 8)]
)
def test_gathered_layers_are_in_memory_during_their_passes(small: Make, fields: str, layers: int) -> None:
    """In addition to layers pinned to the ends, which PyTorch's FSDP gathers at the root, and keeps."""
    scenario = small(f"model={LLAMA}", "batch=256", f"strategy={{kind: data_parallel, workers: 8, {fields}}}", training(zero=3))
    ends, blocks = (
        [layer.parameters for layer in scenario.model.build_layers() if layer.pinned_to_end == pinned_to_end]
        for pinned_to_end in (True, False)
    )
    allocated = memory(scenario).worst.holders_bytes["communication"]
    # with the loss the most is there: gradients are not yet on their way
    assert allocated == pytest.approx(4 * (sum(ends) + layers * blocks[0]))


def test_buckets_add_memory_unless_gradients_are_views_of_them(small: Make) -> None:
    fields = (*HEAVY, "strategy={kind: data_parallel, workers: 4, microbatches: 2}")
    separate, views = (
        memory(small(*fields, trained_by("pytorch-ddp", copies_buckets=copies))).worst for copies in (True, False)
    )
    gradients = 4 * small(*fields).model.parameters()
    assert separate.total_bytes - views.total_bytes == gradients
    in_buffers = small(*HEAVY, hybrid(workers=4, microbatches=2), "framework=megatron-core-0.12")
    assert memory(in_buffers).worst.holders_bytes["communication"] == 0


@pytest.mark.parametrize(
    ("framework", "precision", "each"),
    [
        # bytes of a logit: log-softmax, its gradient and its input's, and the logits, which the script holds
        ("pytorch-ddp", "bf16", 4 + 4 + 4 + 2),
        ("pytorch-ddp", "fp32", 4 + 4 + 4 + 4),
        # the softmax in place, and 16-bit logits and 32-bit ones before it
        ("megatron-core-0.12", "bf16", 4 + 4 + 2),
        ("torchtitan-2025", "bf16", 2 + 2),
        # of one part of the samples
        ("hf-trainer-liger", "bf16", 2 / 16),
    ],
)
def test_memory_of_the_loss_depends_on_the_framework(small: Make, framework: str, precision: str, each: int) -> None:
    model = "model={kind: llama, layers: 1, hidden: 16, heads: 2, vocabulary: 65536, sequence: 64}"
    ways = f"training.precision={precision}", "training.autocast=false", f"framework={framework}"
    scenario = small(model, *ON, "batch=4", hybrid(), *ways)
    holders = memory(scenario).worst.holders_bytes
    assert (holders["logits"] + holders["working"]) / (4 * 64 * 65536) == pytest.approx(each, rel=1e-3)


def test_8_bit_inputs_need_less_activation_memory(small: Make) -> None:
    """A gated layer of 16.75 units with grouped queries keeps its norms' outputs and its activation in 8 bits, and a copy of
    attention's output: 2 · 1/2 + 3.5 / 2 less, 1/2 more."""
    fields = (
        f"model={LLAMA.replace('heads: 8', 'heads: 8, key_heads: 1, feedforward: 1792')}",
        "cluster=eos-h100",
        "batch=8",
        hybrid(stages=8, microbatches=8),
        "training.precision=fp8",
    )
    plain, narrow = (
        memory(small(*fields, trained_by("megatron-core-0.12", fp8_input_bytes=size))).ranks[3].holders_bytes["activations"]
        for size in (2, 1)
    )
    unit = 5 * 256 * 512 * 2
    assert (plain - narrow) / unit == pytest.approx(1 + 1.75 - 0.5)


@pytest.mark.parametrize(
    ("compression", "left"), [("{kind: fp16}", 0), ("{kind: power_sgd, rank: 2}", 4), ("{kind: top_k, share: 0.01}", 4)]
)
def test_compression_residuals_are_kept_in_memory(small: Make, compression: str, left: int) -> None:
    fields = (*HEAVY, "strategy.workers=4")
    plain, compressed = (memory(small(*fields, *more)).worst for more in ((), (f"strategy.compression={compression}",)))
    scenario = small(*fields, f"strategy.compression={compression}")
    messages = scenario.strategy.plan.compression.wire([t for layer in scenario.model.build_layers() for t in layer.tensors], 4)
    sent = sum(wire.collective_bytes(4) for wire in messages)
    assert compressed.total_bytes - plain.total_bytes == pytest.approx(left * scenario.model.parameters() + sent)


def test_local_sgd_with_momentum_keeps_the_period_start(small: Make) -> None:
    """arXiv 2311.08105: the parameters of the period's begin and their momentum, two numbers of four bytes for each."""
    plain, outer = (
        memory(small(*HEAVY, f"strategy={{kind: local_sgd, workers: 4, period: 8, outer: {outer}}}")).worst
        for outer in ("none", "nesterov")
    )
    assert outer.total_bytes - plain.total_bytes == 8 * small(*HEAVY).model.parameters()


def test_the_main_worker_gathers_all_gradients(small: Make) -> None:
    allocated = memory(small(*HEAVY, "strategy={kind: gather_average, workers: 4}", "training.optimizer=adam"))
    main, other = allocated.ranks
    parameters = small(*HEAVY).model.parameters()
    assert (main.name, other.name) == ("main worker", "worker")
    assert main.holders_bytes["communication"] - other.holders_bytes["communication"] == 3 * 4 * parameters
    assert main.holders_bytes["optimizer_states"] == 8 * parameters
    assert other.holders_bytes["optimizer_states"] == 0


def test_the_fullest_server_determines_memory(small: Make) -> None:
    """One tensor has all but nothing: the server that has it has all."""
    model = "model={kind: mlp, layers: 2, inputs: 4096, hidden: 4096, outputs: 4}"
    even, whole = (
        memory(small(model, f"strategy={{kind: parameter_server, workers: 2, servers: 4, shard: {shard}}}")).servers
        for shard in ("bytes", "tensor")
    )
    assert even is not None
    assert whole is not None
    assert whole.total_bytes == pytest.approx(4 * even.total_bytes, rel=0.01)


def test_the_worker_with_the_most_samples_determines_memory(small: Make) -> None:
    model = "model={kind: mlp, layers: 8, inputs: 64, hidden: 64, outputs: 64}"
    uneven = memory(small(model, "batch=4096", "strategy={kind: data_parallel, workers: 2, shares: [1024, 3072]}"))
    even = memory(small(model, "batch=6144", "strategy={kind: data_parallel, workers: 2}"))
    assert uneven.worst.total_bytes == even.worst.total_bytes


def test_receive_buffers_depend_on_the_framework(small: Make) -> None:
    """torch.distributed.pipelining has buffers for all microbatches, Megatron-LM for the next."""
    fields = (GPT, *ON, "batch=32", training(precision="fp16", recompute="full"))
    strategy = "strategy={kind: pipeline, stages: 4, microbatches: 16}"
    torch, ours = (memory(small(*fields, strategy, f"framework={name}")) for name in ("pytorch-ddp", "megatron-core-0.12"))
    passed = 512 * 2 * 1024 * 2
    # of the second stage, which has three microbatches in flight; autocast passes 32 bits
    assert torch.ranks[1].holders_bytes["communication"] == 2 * ((16 - 3) * passed + 16 * passed + 3 * passed)
    assert ours.ranks[1].holders_bytes["communication"] == 2 * passed


@pytest.mark.parametrize(("devices", "measured_MiB"), [(4, 688)])
def test_nccl_buffers_have_the_expected_bytes(small: Make, devices: int, measured_MiB: float) -> None:
    """NVIDIA/nccl, issue 964: what an A100 holds for a communicator of a node."""
    scenario = small(*HEAVY, *ON, f"strategy={{kind: data_parallel, workers: {devices}}}")
    assert memory(scenario).worst.holders_bytes["library"] / 2**20 == pytest.approx(measured_MiB, rel=0.05)
    on_host = small(*HEAVY, "cluster=workstation-2x4090", "strategy={kind: data_parallel, workers: 2}")
    assert memory(on_host).worst.holders_bytes["library"] == 0


def test_chunks_of_different_size_are_counted_separately(small: Make) -> None:
    """The last rank of two has the third and the fourth stage, which holds all but one block."""
    strategy = hybrid(stages=2, chunks=2, schedule="interleaved_1f1b", microbatches=8, balance="[1, 1, 1, 13]")
    allocated = memory(small(GPT, *ON, BARE, "batch=16", strategy, training(precision="fp16", recompute="full")))
    sbh = 512 * 2 * 1024
    counts = fullest_passes("interleaved_1f1b", 2, 1, 8, 2).candidates[:, :, 3]
    assert allocated.ranks[1].holders_bytes["activations"] / sbh == pytest.approx(
        max(2 * one + 2 * 13 * other for one, other in counts.tolist()), rel=0.02
    )


def test_reported_memory_separates_allocated_reserved_and_total(small: Make) -> None:
    allocated = memory(small(GPT, *ON, "batch=8", hybrid(workers=8))).worst
    outside = allocated.holders_bytes["library"] + allocated.holders_bytes["context"]
    assert allocated.total_bytes - allocated.reserved_bytes == pytest.approx(outside)
    assert allocated.reserved_bytes - allocated.allocated_bytes == pytest.approx(allocated.holders_bytes["fragmentation"])
