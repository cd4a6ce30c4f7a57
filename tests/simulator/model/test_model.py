from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import Gpt, Mlp, ResNet, cut_into_stages


# counts published with torchvision's models
@pytest.mark.parametrize(("depth", "parameters"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)])
def test_resnet_has_the_published_parameters(depth: int, parameters: int) -> None:
    assert ResNet.model_validate({"depth": depth}).parameters() == parameters


# multiply-adds published with torchvision's models, in units of 1e9
@pytest.mark.parametrize(("depth", "multiply_adds"), [(50, 4.09), (101, 7.80), (152, 11.51)])
def test_resnet_has_the_published_flops(depth: int, multiply_adds: float) -> None:
    layers = ResNet.model_validate({"depth": depth}).build_layers()
    assert sum(layer.forward_flops for layer in layers) / 2e9 == pytest.approx(multiply_adds, rel=2e-3)


def test_gpt3_has_175_billion_parameters_and_its_flops() -> None:
    gpt = Gpt(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048)
    assert gpt.parameters() == pytest.approx(175e9, rel=3e-3)
    # arXiv 2104.04473: 24·B·s·l·h²·(1 + s/6h + V/12lh) forward
    h, s, v, n = 12288, 2048, 50257, 96
    published = 24 * s * n * h * h * (1 + s / (6 * h) + v / (12 * n * h))
    assert sum(layer.forward_flops for layer in gpt.build_layers()) == pytest.approx(published)


def test_gpt_heads_must_divide_hidden() -> None:
    with pytest.raises(ValidationError, match="heads: 3 does not divide hidden 10; give a divisor of it"):
        Gpt(layers=1, hidden=10, heads=3, vocabulary=5, sequence=5)


def test_mlp_layers_have_the_expected_operators() -> None:
    layers = Mlp(layers=3, inputs=4, hidden=5, outputs=2).build_layers()
    assert [layer.tensors for layer in layers] == [(20, 5), (25, 5), (10, 2)]
    assert [layer.output_elements for layer in layers] == [5, 5, 2]
    assert len({layer.signature for layer in layers}) == 3


@given(blocks=st.integers(1, 40), data=st.data())
def test_stages_cover_all_layers_evenly(blocks: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, blocks))
    layers = Gpt(layers=blocks, hidden=4, heads=1, vocabulary=4, sequence=4).build_layers()
    ranges = cut_into_stages(layers, stages)
    assert [i for r in ranges for i in r] == list(range(len(layers)))
    counts = [sum(not layers[i].pinned_to_end for i in r) for r in ranges]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


def test_more_stages_than_layers_are_rejected() -> None:
    layers = Gpt(layers=6, hidden=4, heads=1, vocabulary=4, sequence=4).build_layers()
    with pytest.raises(FieldError, match="9 stages for 6 layers; give at most 6"):
        cut_into_stages(layers, 9)
