"""Models that read images and text: the tower's tokens, its FLOPs, and where it stands among the layers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from scaleproof.simulator.model import AnyModel, Llama, VisionLanguage
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model

TEXT: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}
VISION: dict[str, Any] = {"layers": 3, "hidden": 32, "heads": 2, "feedforward": 64, "image": 16, "patch": 4}


def model(**changes: Any) -> VisionLanguage:
    tower = VISION | changes.pop("vision", {})
    found = TypeAdapter(AnyModel).validate_python({"kind": "vision_language", "vision": tower, **TEXT, **changes})
    assert isinstance(found, VisionLanguage)
    return found


def test_a_tower_precedes_the_layers_of_the_decoder() -> None:
    layers = model().build_layers()
    decoder = Llama.model_validate(TEXT).build_layers()
    assert [layer.name for layer in layers[:5]] == ["patches", "vision0", "vision1", "vision2", "projector"]
    assert [layer.forward_flops for layer in layers[5:]] == [layer.forward_flops for layer in decoder]


def test_flops_of_the_tower_are_those_of_its_products() -> None:
    tower = sum(layer.forward_flops for layer in model(images=2).build_layers()[:5])
    patches, width = 2 * 16, 32
    blocks = 3 * (2 * patches * (4 * width * width + 2 * width * 64) + 2 * 2 * patches * 16 * width)
    assert tower == 2 * patches * 3 * 16 * width + blocks + 2 * patches * width * 64


def test_merged_and_pooled_patches_are_fewer_tokens() -> None:
    assert model().vision.tokens == 16
    assert model(vision={"projector": {"merge": 2}}).vision.tokens == 4
    assert model(vision={"projector": {"pool": 4}}).vision.tokens == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 3}, "sequence: 32 is less than the 48 tokens of a sample's images"),
        ({"vision": {"image": 18}}, "image: 18 pixels are no multiple of 4"),
        ({"vision": {"heads": 3}}, "heads: 3 does not divide hidden 32"),
        ({"vision": {"global_blocks": 4}}, "global_blocks: 4 is more than layers 3"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        model(**changes)


def test_an_image_of_qwen2_vl_costs_what_its_tower_does() -> None:
    """32 blocks of 1,024 patches, which are 256 tokens of the decoder."""
    whole = load_model("qwen2-vl-7b")
    assert isinstance(whole, VisionLanguage)
    assert whole.vision.tokens == 256
    text = sum(layer.forward_flops for layer in whole.build_layers() if not layer.name.startswith(("vision", "pat", "proj")))
    everything = sum(layer.forward_flops for layer in whole.build_layers())
    blocks = 32 * (2 * 1024 * (4 * 1280 * 1280 + 2 * 1280 * 5120) + 4 * 1024 * 1024 * 1280)
    ends = 2 * 1024 * 3 * 2 * 14 * 14 * 1280 + 2 * 256 * (5120 * 5120 + 5120 * 3584)
    assert everything - text == blocks + ends


@pytest.mark.parametrize(
    "strategy",
    ["{kind: data_parallel, workers: 8}", "{kind: hybrid, workers: 4, tensor: 2}", "{kind: hybrid, workers: 2, stages: 4}"],
)
def test_models_with_images_are_predicted_in_all_layouts(strategy: str) -> None:
    changes = ["model=qwen2-vl-2b", "model.sequence=1024", "cluster=dgx-h100", f"strategy={strategy}", "batch={total: 16}"]
    assert predict(load("llama-2-7b-fsdp-a100", changes)).step_time_s > 0
