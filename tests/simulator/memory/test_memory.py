"""Memory of ranks compared with theory and papers, on simple models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory, states
from scaleproof.simulator.memory.activations import segments, size_bytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul, Module, SavedActivation
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute, kept_activations
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Training
from scaleproof.simulator.strategy.scenario_job import job_of

Make = Callable[..., Scenario]

# stages of equal layers whose activations are large and whose parameters are few
TALL = "model={kind: mlp, layers: 8, inputs: 64, hidden: 64, outputs: 64}"
BATCH = "batch=65536"
WIDE = "model={kind: mlp, layers: 8, inputs: 512, hidden: 512, outputs: 512}"


def pipeline(stages: int, microbatches: int, schedule: str) -> str:
    return f"strategy={{kind: pipeline, stages: {stages}, microbatches: {microbatches}, schedule: {schedule}}}"


def layer(name: str = "layer", parameters: int = 0, *activations: SavedActivation, pinned_to_end: bool = False) -> Layer:
    return Layer(
        name, name, (Matmul("product", 1, 10, 10),), (parameters,) if parameters else (), 10, pinned_to_end, activations
    )


BLOCK = replace(
    layer(
        "block",
        100,
        SavedActivation("input", 10, group="input"),
        SavedActivation("hidden", 70),
        SavedActivation("scores", 500, 1, "attention"),
    ),
    modules=(Module("core_attn", (), (2,)),),
)


@pytest.mark.parametrize(
    ("precision", "optimizer", "zero", "expected"),
    [
        # parameters, gradients, master copies, states of 1,000 parameters on 4 workers: arXiv 1910.02054, figure 1
        ("bf16", "adam", 0, (2000, 2000, 4000, 8000)),
        ("bf16", "adam", 1, (2000, 2000, 1000, 2000)),
        ("bf16", "adam", 2, (2000, 500, 1000, 2000)),
        ("bf16", "adam", 3, (500, 500, 1000, 2000)),
        ("fp32", "adam", 0, (4000, 4000, 0, 8000)),
        ("fp32", "lamb", 0, (4000, 4000, 0, 8000)),
        ("fp32", "momentum", 1, (4000, 4000, 0, 1000)),
        ("fp64", "sgd", 0, (8000, 8000, 0, 0)),
        ("bf16", "lion", 0, (2000, 2000, 4000, 4000)),
        # one number for each row and each column
        ("fp32", "adafactor", 0, (4000, 4000, 0, 4 * 2 * 1000**0.5)),
    ],
)
def test_parameter_states_have_the_expected_bytes(
    precision: str, optimizer: str, zero: int, expected: tuple[float, ...]
) -> None:
    training = Training.model_validate({"precision": precision, "optimizer": optimizer, "zero": zero})
    assert states([layer("one", 1000)], training, replicas=4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("zero", "expected"), [(0, (2000, 2000, 0, 4000)), (2, (2000, 500, 0, 1000)), (3, (500, 500, 0, 1000))]
)
def test_pure_bf16_has_eight_bytes_for_each_parameter_with_adam(zero: int, expected: tuple[int, ...]) -> None:
    training = Training(precision="bf16", optimizer="adam", zero=zero, master=False)
    assert states([layer("one", 1000)], training, 4) == expected


def test_pure_bf16_sums_and_updates_bf16(small: Make) -> None:
    pure, mixed = (
        small(
            "cluster=dgx-h100",
            "strategy={kind: data_parallel, workers: 4}",
            f"training={{zero: 3, precision: bf16, optimizer: adam, master: {master}}}",
            "framework=pytorch-fsdp2",
        )
        for master in ("false", "true")
    )
    sizes = [memory(one).worst.holders_bytes for one in (pure, mixed)]
    count = pure.model.parameters()
    assert sum(sizes[0][name] for name in ("parameters", "master_parameters", "optimizer_states")) == pytest.approx(
        6 * count / 4
    )
    # sharded parameters in 32 bits are the master copies
    assert sum(sizes[1][name] for name in ("parameters", "master_parameters", "optimizer_states")) == pytest.approx(
        12 * count / 4
    )
    assert job_of(pure).reduced_bytes == 2
    moved_s = [job_of(one).optimizer_s(1e9) for one in (pure, mixed)]
    assert moved_s[0] == pytest.approx(moved_s[1] / 2, rel=0.05)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("training={precision: fp16, master: false}",),
            "training.master: fp16 does not train without master copies; give true",
        ),
        (("training={master: false}",), "training.master: fp32 does not train without master copies"),
        (
            ("training={precision: bf16, master: false}", "strategy={kind: parameter_server, workers: 2, servers: 1}"),
            "training.master: the servers of a parameter_server update in fp32; leave master out",
        ),
    ],
)
def test_pure_training_is_refused_where_it_is_not_described(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        small("cluster=dgx-h100", *overrides)


def test_kept_activations_depend_on_recomputation() -> None:
    def bytes_of(recompute: Recompute, first: bool = True) -> int:
        return size_bytes(kept_activations(BLOCK, recompute, first), 2)

    every = Recompute.model_validate({"group": 3})
    assert bytes_of(NO_RECOMPUTE) == 2 * 80 + 500
    assert bytes_of(Recompute(kind="selective")) == 2 * 80
    assert bytes_of(Recompute(kind="full")) == bytes_of(every) == 2 * 10
    assert bytes_of(every, first=False) == 0


@given(st.integers(1, 9), st.integers(1, 20))
def test_layers_are_recomputed_in_groups_between_pinned_ones(every: int, blocks: int) -> None:
    layers = [layer(pinned_to_end=True), *[BLOCK] * blocks, layer(pinned_to_end=True)]
    numbers = segments(layers, Recompute(kind="full", group=every)).tolist()
    groups = [numbers.count(number) for number in sorted(set(numbers))]
    assert numbers == sorted(numbers)
    assert groups[0] == groups[-1] == 1
    assert max(groups) <= every
    assert len(groups) == 2 + -(-blocks // every)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_activation_memory_follows_the_schedule(small: Make, schedule: str) -> None:
    """Of stages of two equal layers: what one microbatch keeps, times those in flight; what the model reads is all there."""
    allocated = memory(small(TALL, pipeline(4, 8, schedule), BATCH))
    input_bytes = 65536 / 8 * 64 * 4
    flights = [8] * 4 if schedule == "gpipe" else [4, 3, 2, 1]
    activations = [rank.holders_bytes["activations"] / input_bytes for rank in allocated.ranks[:3]]
    # the fullest moment may come when one of the two layers is through
    assert activations == pytest.approx([8 + flights[0], 2 * flights[1], 2 * flights[2]], abs=1)


@pytest.mark.parametrize(
    ("recompute", "per_layer"), [("none", 34 + 5 * 16 * 512 / 1024), ("selective", 34), ("full", 2), ("{group: 2}", 1)]
)
def test_activation_memory_of_stages_equals_published_formulas(small: Make, recompute: str, per_layer: float) -> None:
    """arXiv 2205.05198, equations 1, 5 and 6 and table 2: bytes of a layer in units of s·b·h; the first of p stages holds p
    microbatches of its layers, so as much as all layers hold for one, and a mask for the embedding's dropout of each."""
    model = "{kind: gpt, layers: 16, hidden: 1024, heads: 16, vocabulary: 64, sequence: 512, dropout: true, flash: false}"
    training = f"training={{precision: bf16, recompute: {recompute}}}"
    allocated = memory(small(f"model={model}", "cluster=selene-a100", pipeline(4, 8, "1f1b"), "batch=16", training))
    sbh = 512 * (16 / 8) * 1024
    layers = [rank.holders_bytes["activations"] / sbh for rank in allocated.ranks]
    assert layers[0] == pytest.approx(16 * per_layer + 4)
    assert layers[1:3] == pytest.approx([3 * 4 * per_layer, 2 * 4 * per_layer])


def test_peaks_of_gradients_and_activations_do_not_coincide(small: Make) -> None:
    """Layers are let go while the gradients of the next come: with one microbatch the peak is below their sum."""
    scenario = small(WIDE, "strategy.workers=1", "batch=512")
    parameters_bytes, activations_bytes = 4 * scenario.model.parameters(), 4 * 512 * 9 * 512
    holders = memory(scenario).worst.holders_bytes
    came_bytes = sum(holders[name] for name in ("gradients", "activations", "logits", "working"))
    assert max(parameters_bytes, activations_bytes) < came_bytes < 0.75 * (parameters_bytes + activations_bytes)


def test_offloaded_states_are_in_host_memory(small: Make) -> None:
    scenario = small("strategy.workers=4", "training={optimizer: adam, zero: 3, offload: [optimizer, parameters]}")
    parameters = scenario.model.parameters()
    worst = memory(scenario).worst
    assert worst.holders_bytes["optimizer_states"] == worst.holders_bytes["parameters"] == 0
    # parameters, gradients and two moments
    assert worst.host_bytes == pytest.approx(4 * 4 * parameters / 4)


def test_servers_store_the_optimizer_states_of_their_workers(small: Make) -> None:
    scenario = small("strategy={kind: parameter_server, workers: 4, servers: 2}", "training.optimizer=adam")
    allocated = memory(scenario)
    assert allocated.servers is not None
    assert allocated.servers.holders_bytes["optimizer_states"] == 4 * 2 * scenario.model.parameters() / 2
    assert allocated.worst.holders_bytes["optimizer_states"] == 0


def test_gpu_memory_includes_context_and_libraries(small: Make) -> None:
    plain, gpu = (memory(small(f"cluster.device.name={name}")).worst.holders_bytes for name in ("small", "A100-80GB-SXM"))
    tensors = ("parameters", "gradients", "optimizer_states", "activations", "logits")
    assert {name: plain[name] for name in tensors} == {name: gpu[name] for name in tensors}
    for name in ("workspace", "context", "fragmentation"):
        assert plain[name] == 0 < gpu[name]
    assert gpu["library"] > plain["library"] == 0


def test_processes_share_the_memory_of_their_machine(small: Make) -> None:
    alone, four = (memory(small("cluster.node.cores=4", f"strategy.workers={workers}")) for workers in (1, 4))
    assert four.capacity_bytes == alone.capacity_bytes / 4 == 2 * 2**30


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (TALL, "training.recompute=selective"),
            "training.recompute: this mlp has no attention to recompute; give full, or {group: n}",
        ),
        (("training.recompute=half",), "'half' is not known; give 'none', 'selective' or 'full'"),
        (("training.recompute={group: 0}",), "must be greater than 0"),
        (("training.zero=4",), "training.zero: must be at most 3"),
        (
            ("strategy={kind: parameter_server, workers: 2, servers: 1}", "training.zero=1"),
            "training.zero: servers have the optimizer states of a parameter_server",
        ),
        (("training.offload=[parameters]",), "training.offload: only sharded parameters can be offloaded"),
        (("training.offload=[weights]",), "'weights' is not known; give 'optimizer', 'parameters' or 'activations'"),
    ],
)
def test_invalid_fields_are_rejected(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("training", "expected_bytes"),
    [
        ("optimizer: adam", 8),
        ("optimizer: adam, state_bits: 16", 4),
        # a byte, and 4 for each block of 256 elements
        ("optimizer: adam, state_bits: 8", 2 * (1 + 4 / 256)),
        ("optimizer: lion, state_bits: 8", 1 + 4 / 256),
        ("optimizer: adam, master: false", 4),
        ("optimizer: adam, ema: true", 12),
        ("optimizer: adam, ema: bf16", 10),
        # embeddings and the output head, of 262 M parameters, have two moments
        ("optimizer: muon", 4 * (1 + 262.4e6 / 6738.4e6)),
    ],
)
def test_states_of_a_7b_model(training: str, expected_bytes: float) -> None:
    scenario = load("llama-2-7b", ("cluster=dgx-h100", "batch=8", f"training={{precision: bf16, {training}}}"))
    parameters = scenario.model.parameters()
    assert memory(scenario).worst.holders_bytes["optimizer_states"] == pytest.approx(expected_bytes * parameters, rel=2e-3)


def test_small_tensors_have_no_states_of_8_bits() -> None:
    training = Training.model_validate({"precision": "bf16", "optimizer": "adam", "state_bits": 8})
    assert states([layer("one", 4095)], training).optimizer_states == 8 * 4095
    assert states([layer("one", 4096)], training).optimizer_states == 2 * (4096 + 4 * 16)
