"""Recorded modules: what the file holds, and what it is read as."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import Layer, ResNet
from scaleproof.simulator.model.operators import Attention
from scaleproof.simulator.model.recorded import RecordedModel, decoded, encoded
from scaleproof.simulator.model.traced import Traced
from scaleproof.simulator.scenario.read import load_model


def multiplies(layers: list[Layer]) -> float:
    return sum(layer.forward_flops for layer in layers) / 2e9


def test_a_line_holds_all_that_layers_cost() -> None:
    layers = tuple(ResNet().build_layers())
    assert decoded(encoded(layers)) == layers


def test_the_recorded_resnet_is_the_built_in_one() -> None:
    recorded, built = RecordedModel(source="timm:resnet50").build_layers(), ResNet().build_layers()
    assert sum(layer.parameters for layer in recorded) == sum(layer.parameters for layer in built)
    assert multiplies(recorded) == pytest.approx(multiplies(built), rel=1e-6)


def test_attention_before_pytorch_2_keeps_scores() -> None:
    flash, products = (RecordedModel(source="timm:vit_base_patch16_224", flash=flash).build_layers() for flash in (True, False))
    kept = [sum(one.elements for layer in layers for one in layer.kept) for layers in (flash, products)]
    scores = sum(one.scores for layer in flash for one in layer.operators if isinstance(one, Attention))
    assert kept[1] - kept[0] == scores > 0
    assert not any(one.flash for layer in products for one in layer.operators if isinstance(one, Attention))


def test_unknown_modules_and_sizes_are_refused() -> None:
    with pytest.raises(FieldError, match=r"no module is recorded as 'dit-xl2'; did you mean .*'dit-xl-2'"):
        RecordedModel(source="dit-xl2").build_layers()
    with pytest.raises(FieldError, match="dit-xl-2 is recorded for 256 pixels, not 640; leave image out"):
        RecordedModel(source="dit-xl-2", image=640).build_layers()
    with pytest.raises(FieldError, match=r"not 230; .*pip install timm|img_size|@230|no model"):
        RecordedModel(source="timm:vit_base_patch16_224", image=230).build_layers()


@pytest.mark.parametrize(
    ("source", "side", "message"),
    [
        ("timm:resnet50x", None, "resnet50x is not recorded, and timm is not installed; pip install timm.*'timm:resnet50'"),
        ("torchvision:resnet50", None, "torchvision is not installed; pip install torchvision.*or take 'resnet50'"),
        ("torchvision:vit_b_16", 200, "or take 'vit-b-16'"),
        ("timm:vit_base_patch16_224", 100, "recorded for 224 pixels, not 100; leave image out, or pip install timm"),
    ],
)
def test_modules_of_packages_that_are_not_installed(
    source: str, side: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FieldError, match=message):
        RecordedModel(source=source, image=side).build_layers()


def test_schedules_that_modules_read_have_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "import torch\nclass Deep(torch.nn.Linear):\n    def __init__(self):\n"
        "        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]\n        super().__init__(4, 4)\n"
        "def build():\n    return Deep(), torch.randn(2, 4)\n"
    )
    (tmp_path / "deep_schedule.py").write_text(text)
    assert Traced(source="python:deep_schedule:build").build_layers()[0].parameters == 20


def test_names_do_not_change_costs() -> None:
    layers = load_model("vit-b-16").build_layers()
    assert len({replace(layer, name="", inputs=None) for layer in layers[1:-1]}) < len(layers) - 2
