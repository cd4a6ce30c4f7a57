"""Frozen parameters of users' modules: no gradients, states, sums, or backward passes below the first trained layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scaleproof.simulator.analysis.planner.estimate import Space, every, memory_bytes, step_times
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import replay
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, MemoryBound
from scaleproof.simulator.model.traced import trace
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.model.tracing import frozen_models
from tests.simulator.model.tracing.frozen_models import BATCH, DEPTH, WIDTH
from tests.simulator.model.tracing.test_torch_module import torch_keeps
from tests.simulator.programs import compiled, moved_bytes, work_s

MODELS = "python:tests.simulator.model.tracing.frozen_models"
# parameters of a layer of the towers
LAYER = WIDTH * WIDTH + WIDTH
KINDS = ("frozen_tower", "half_frozen_tower", "frozen_top", "adapted", "encoded", "convolutions", "attention")


def layers_of(name: str) -> list[Layer]:
    return trace(f"{MODELS}:{name}").build_layers()


def scenario(name: str, *overrides: str) -> Scenario:
    text = f"model: {MODELS}:{name}\ncluster: dgx-h100\nstrategy: {{kind: data_parallel, workers: 8}}\nbatch: 64\n"
    text += "training: {precision: bf16, optimizer: adam}\n"
    return build(yaml_file.parse(text, "text.yaml"), Path("text.yaml"), overrides)


@pytest.mark.parametrize("name", KINDS)
def test_flops_equal_those_that_torch_counts(name: str) -> None:
    with torch.device("meta"):
        module, x = getattr(frozen_models, name)()
        with FlopCounterMode(display=False) as counter:
            output = module(x)
            forward = counter.get_total_flops()
            output.sum().backward()
    layers = layers_of(name)
    assert sum(layer.forward_flops for layer in layers) * BATCH == pytest.approx(forward)
    backward = sum(layer.backward_flops for layer in layers) * BATCH
    assert backward == pytest.approx(counter.get_total_flops() - forward)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("attention", "convolutions")])
def test_kept_activations_equal_those_of_autograd(name: str) -> None:
    with torch.device("meta"):
        kept = torch_keeps(*getattr(frozen_models, name)()) / BATCH
    own = sum(item.elements * (item.element_bytes or 4) for layer in layers_of(name) for item in layer.kept)
    assert own == pytest.approx(kept)


def test_parameters_are_trained_or_frozen() -> None:
    layers = layers_of("half_frozen_tower")
    assert [layer.trained_parameters for layer in layers] == [0] * (DEPTH // 2) + [LAYER] * (DEPTH // 2)
    assert {layer.parameters for layer in layers} == {LAYER}
    assert [layer.has_backward for layer in layers] == [False] * (DEPTH // 2) + [True] * (DEPTH // 2)


def test_blocks_below_the_first_trained_one_have_no_backward_pass() -> None:
    layers = layers_of("attention")
    attention = [o.has_backward for layer in layers for o in layer.operators if isinstance(o, Attention)]
    assert attention == [False, False, True]
    assert not any(o.backward_read for layer in layers[:-1] for o in layer.operators if isinstance(o, MemoryBound))
    assert not any(layer.kept for layer in layers[:-1])


def test_a_step_has_the_passes_and_sums_of_the_trained_layers() -> None:
    whole, frozen = scenario("trained_tower"), scenario("frozen_tower")
    forward, backward = (work_s(compiled(frozen), phase).max() for phase in (Phase.FORWARD, Phase.BACKWARD))
    both = work_s(compiled(whole), Phase.BACKWARD).max()
    assert forward == pytest.approx(work_s(compiled(whole), Phase.FORWARD).max())
    # the weight gradient alone of one of the layers
    assert backward < both / DEPTH
    assert moved_bytes(compiled(frozen)) == pytest.approx(moved_bytes(compiled(whole)) / DEPTH)
    optimizer = [work_s(compiled(one), Phase.OPTIMIZER).max() for one in (frozen, whole)]
    assert optimizer[0] < optimizer[1]


@pytest.mark.parametrize(("autocast", "parameter_bytes", "master_bytes"), [("true", 4, 0), ("false", 2, 4)])
def test_memory_has_the_states_of_the_trained_layers(autocast: str, parameter_bytes: int, master_bytes: int) -> None:
    whole, frozen = (scenario(name, f"training.autocast={autocast}") for name in ("trained_tower", "frozen_tower"))
    holders, all_holders = (memory(one).worst.holders_bytes for one in (frozen, whole))
    assert holders["parameters"] == all_holders["parameters"] == DEPTH * LAYER * parameter_bytes
    assert all_holders.get("master_parameters", 0) == DEPTH * LAYER * master_bytes
    for states in ("master_parameters", "optimizer_states"):
        assert holders[states] == pytest.approx(all_holders[states] / DEPTH)
    assert memory(frozen).worst.total_bytes < memory(whole).worst.total_bytes


def test_flops_of_a_run_are_those_that_are_computed() -> None:
    layer = 2 * WIDTH * WIDTH
    assert predict(scenario("trained_tower")).model_flops == pytest.approx(64 * (3 * DEPTH - 1) * layer)
    assert predict(scenario("frozen_tower")).model_flops == pytest.approx(64 * (DEPTH + 1) * layer)
    # gradients pass through all frozen layers
    assert predict(scenario("frozen_top")).model_flops == pytest.approx(64 * (DEPTH + DEPTH - 1 + 1) * layer)


def test_zero_3_gathers_frozen_parameters_and_scatters_no_gradients_of_them() -> None:
    program = compiled(scenario("half_frozen_tower", "training.zero=3"))
    size_bytes = 7 / 8 * DEPTH * LAYER
    # gathered in 16 bits: all for the forward pass, those with a backward pass again; gradients are scattered in 32 bits
    assert moved_bytes(program) == pytest.approx(size_bytes * (2 + 2 / 2 + 4 / 2))


@pytest.mark.parametrize("zero", [1, 2])
def test_zero_1_and_2_gather_what_the_optimizer_has_changed(zero: int) -> None:
    parts = [moved_bytes(compiled(scenario(name, f"training.zero={zero}"))) for name in ("half_frozen_tower", "trained_tower")]
    assert parts[0] == pytest.approx(parts[1] / 2)


def test_stages_below_the_first_trained_layer_receive_no_gradients() -> None:
    pipeline = "strategy={kind: pipeline, stages: 4, microbatches: 8}"
    sent = [moved_bytes(compiled(scenario(name, pipeline)), Kind.TRANSFER) for name in ("half_frozen_tower", "trained_tower")]
    # one of three boundaries is passed back
    assert sent[0] == pytest.approx(sent[1] * 4 / 6)
    stages = work_s(compiled(scenario("half_frozen_tower", pipeline)), Phase.BACKWARD)
    assert np.array_equal(stages > 0, [False, False, True, True])


@pytest.mark.parametrize("name", ["half_frozen_tower", "frozen_tower"])
def test_bounds_of_pipelines_are_below_what_is_replayed(name: str) -> None:
    base = scenario(name, "strategy={kind: hybrid, workers: 8}", "batch=512", "framework=ideal")
    schedules: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved_1f1b")
    space = Space(base, (8,), tensor=(1,), stages=(2, 4), chunks=(1, 2), samples=(16,), zero=(0, 2, 3), schedules=schedules)
    found = every(space)
    times, needed_bytes = step_times(found), memory_bytes(found)
    scenarios = [found.scenario(row) for row in range(len(found))]
    replayed_s = np.array([timed(one, simulate=replay.simulate).step_time_s for one in scenarios])
    assert (times.least_s <= replayed_s * (1 + 1e-9)).all()
    assert needed_bytes == pytest.approx([memory(one).worst.total_bytes for one in scenarios])
