"""Torch models have the simulator's tensors and activations, and equal initial weights on every rank."""

from __future__ import annotations

import pytest
import torch

from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.simulator.model.layers import Layer
from scaleproof.validator.train.models import models
from tests.validator.conftest import GPT, MLP

SPECS: list[Gpt | Mlp] = [Gpt(**GPT), Mlp(**MLP)]


def inputs_of(spec: Gpt | Mlp, samples: int) -> torch.Tensor:
    if isinstance(spec, Gpt):
        return torch.zeros(samples, spec.sequence, dtype=torch.int64)
    return torch.randn(samples, spec.inputs)


def all_layers(spec: Gpt | Mlp) -> list[tuple[Layer, torch.nn.Module]]:
    layers = spec.build_layers()
    return list(zip(layers, models.build(spec, range(len(layers)), seed=0), strict=True))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_layers_have_the_simulators_tensors_and_outputs(spec: Gpt | Mlp) -> None:
    x = inputs_of(spec, samples=3)
    for layer, module in all_layers(spec):
        x = module(x)
        assert tuple(parameter.numel() for parameter in module.parameters()) == layer.tensors, layer.name
        assert x.numel() == 3 * layer.output_elements, layer.name


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_initial_weights_of_a_layer_do_not_depend_on_others(spec: Gpt | Mlp) -> None:
    for number, (_, module) in enumerate(all_layers(spec)):
        [alone] = models.build(spec, [number], seed=0)
        [other] = models.build(spec, [number], seed=1)
        pairs = list(zip(alone.parameters(), module.parameters(), other.parameters(), strict=True))
        assert all(torch.equal(a, b) for a, b, _ in pairs)
        assert any(not torch.equal(a, c) for a, _, c in pairs), "another seed gives another start"


def test_building_does_not_change_the_random_state() -> None:
    before = torch.random.get_rng_state()

    all_layers(SPECS[0])

    assert torch.equal(before, torch.random.get_rng_state())


def test_attention_is_causal() -> None:
    spec = Gpt(**GPT)
    [block] = models.build(spec, [1], seed=0)
    x = torch.randn(1, spec.sequence, spec.hidden)
    later = x.clone()
    later[:, 20:] += 1.0

    same = torch.isclose(block(x), block(later)).all(dim=-1)[0]

    assert same[:20].all(), "no token sees those after it"
    assert not same[20:].any()
