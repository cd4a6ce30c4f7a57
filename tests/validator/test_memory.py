"""What a training step holds at its peak, as torch's profiler counts allocations, against what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from simulator import library
from simulator.errors import InputError
from simulator.memory import in_flight, memory
from simulator.model import cut_into_stages
from simulator.scenario import Scenario, load_model
from tests.validator.conftest import MakeScenario
from validator import model
from validator.checks import check_trainable
from validator.strategy.base import build_optimizer

GPT_MINI: dict[str, Any] = {"kind": "gpt", "layers": 4, "hidden": 256, "heads": 4, "vocabulary": 256, "sequence": 64}
MLP_MINI: dict[str, Any] = {"kind": "mlp", "layers": 6, "inputs": 256, "hidden": 1024, "outputs": 256}
CLOSE = 0.05
SHAPES = [
    (GPT_MINI, 1),
    (GPT_MINI, 3),
    (GPT_MINI, 24),
    (GPT_MINI | {"sequence": 256}, 4),
    (GPT_MINI | {"layers": 2, "hidden": 64, "vocabulary": 4096}, 8),
    (MLP_MINI, 1),
    (MLP_MINI, 256),
    (MLP_MINI, 2048),
    (MLP_MINI | {"layers": 2, "inputs": 2048}, 512),
    (MLP_MINI | {"layers": 3, "hidden": 64, "outputs": 8192}, 128),
]


def size_of(tensors: Iterable[object]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def batch_of(scenario: Scenario) -> tuple[Tensor, Tensor]:
    spec, samples = scenario.model, scenario.samples_per_worker
    if spec.kind == "gpt":
        return torch.zeros(2, samples, spec.sequence, dtype=torch.int64).unbind()
    return torch.randn(samples, spec.inputs), torch.zeros(samples, dtype=torch.int64)


def peak_bytes(step: Callable[[], None]) -> int:
    """The most that `step` holds at a time of what it allocates, once it has run twice."""
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).cumsum(0)
    assert held[-1] == 0, "a step lets go of all that it takes"
    return int(held.max())


def held_between_steps(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    return size_of(module.parameters()) + size_of(value for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize(
    ("spec", "samples", "optimizer"),
    [
        *((spec, samples, "sgd") for spec, samples in SHAPES),
        *((spec, samples, optimizer) for spec, samples in SHAPES[::3] for optimizer in ("momentum", "adam")),
    ],
)
def test_a_workers_peak(make_scenario: MakeScenario, spec: dict[str, Any], samples: int, optimizer: str) -> None:
    scenario = make_scenario({"kind": "data_parallel", "workers": 1}, spec, batch=samples, optimizer=optimizer)
    module = nn.Sequential(*model.build(scenario.model, range(len(scenario.model.build_layers())), seed=0))
    updates = build_optimizer(optimizer, module.parameters(), 0.01)
    inputs, targets = batch_of(scenario)

    def step() -> None:
        model.loss(module(inputs), targets).backward()
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + held_between_steps(module, updates) + size_of([inputs])
    assert memory(scenario).worst.total_bytes == pytest.approx(real_bytes, rel=CLOSE)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("spec", "samples"), [(GPT_MINI, 16), (GPT_MINI, 48), (MLP_MINI, 64), (MLP_MINI, 4096)])
def test_a_stages_peak(make_scenario: MakeScenario, spec: dict[str, Any], samples: int, schedule: str) -> None:
    """The first of two stages, with the gradients of all microbatches' outputs in buffers of their own."""
    strategy = {"kind": "pipeline", "stages": 2, "microbatches": 8, "schedule": schedule}
    scenario = make_scenario(strategy, spec, batch=samples, optimizer="momentum")
    layers = cut_into_stages(scenario.model.build_layers(), 2)[0]
    module = nn.Sequential(*model.build(scenario.model, layers, seed=0))
    updates = build_optimizer("momentum", module.parameters(), 0.01)
    inputs = batch_of(scenario)[0].chunk(8)
    slopes = [torch.zeros_like(module(part)) for part in inputs]
    ahead = in_flight(scenario.strategy, 0)

    def step() -> None:
        outputs = [module(part) for part in inputs[:ahead]]
        for part, slope in zip([*inputs[ahead:], *[None] * ahead], slopes, strict=True):
            outputs.pop(0).backward(slope)
            if part is not None:
                outputs.append(module(part))
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + held_between_steps(module, updates) + size_of([*slopes, *inputs])
    assert memory(scenario).ranks[0].total_bytes == pytest.approx(real_bytes, rel=CLOSE)


def test_the_models_that_ship_are_the_ones_looked_at() -> None:
    for name, fields in (("gpt-mini", GPT_MINI), ("mlp-mini", MLP_MINI)):
        shipped = load_model(library.find_part("model", name, Path()))
        assert {field: getattr(shipped, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "lamb"}, "training.optimizer: lamb is predicted but not measured; give one of sgd, momentum, adam"),
        ({"recompute": "full"}, "training.recompute is predicted but not measured; leave it out to measure"),
        ({"zero": 1}, "training.zero is predicted but not measured"),
        ({"offload": ["optimizer"]}, "training.offload is predicted but not measured"),
    ],
)
def test_what_saves_memory_in_forecasts_alone_is_refused(
    make_scenario: MakeScenario, training: dict[str, Any], message: str
) -> None:
    scenario = make_scenario({"kind": "data_parallel", "workers": 2}, **training)
    with pytest.raises(InputError) as caught:
        check_trainable(scenario)
    assert message in str(caught.value)
