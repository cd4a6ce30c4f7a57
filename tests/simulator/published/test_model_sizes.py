"""Models by name have the parameters and forward FLOPs that their sources print."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common import catalog
from scaleproof.simulator.model import Llama
from scaleproof.simulator.published.model_sizes import Figure, ModelSize, model_sizes
from scaleproof.simulator.scenario.read import load_model

# Modules that compute something once for all samples of a batch, which fvcore counts for one image.
_ONCE = {"timm:dm_nfnet_f0", "timm:nfnet_f0", "timm:nfnet_l0", "timm:resnetv2_50x1_bit", "timm:swinv2_cr_small_224"}
# Modules by name for the input of a source.
_INPUTS = {"detr-r50-1137", "wav2vec2-base-30480"}
_KINDS = {"recorded", "resnet", "vgg", "alexnet", "inception_v3", "dlrm", "hstu", "rnn"}


@pytest.mark.parametrize("size", [size for size in model_sizes() if size.page], ids=lambda size: size.model)
def test_parameters_and_forward_work_of_models_by_name_are_the_published_ones(size: ModelSize) -> None:
    assert size.parameters.agrees, size.parameters
    assert size.forward.agrees, size.forward


def test_parameters_and_forward_work_of_modules_of_timm_are_the_published_ones() -> None:
    modules = [size for size in model_sizes() if not size.page]
    assert [size for size in modules if not size.parameters.agrees] == []
    others = [size for size in modules if not size.forward.agrees]
    assert {size.model for size in others} == _ONCE
    assert all("once for all samples" in size.note for size in others)


def test_each_published_figure_has_a_source() -> None:
    figures = [figure for size in model_sizes() for figure in (size.parameters, size.forward) if figure.published]
    assert all(figure.source for figure in figures)


def test_the_table_has_all_models_for_images_sound_recommendation_and_sequences_without_attention() -> None:
    expected = {
        name
        for name, model in ((name, load_model(name)) for name in catalog.names("models"))
        if model.kind in _KINDS or (isinstance(model, Llama) and model.recurrence is not None)
    }
    assert {size.model for size in model_sizes() if size.page} == expected | _INPUTS


@pytest.mark.parametrize(
    ("published", "ours", "agrees"),
    [("100.0", 100.9, True), ("100.0", 101.1, False), ("0.2", 0.249, True), ("0.2", 0.251, False), ("", 1.0, True)],
)
def test_a_figure_agrees_within_one_percent_or_what_its_digits_leave_open(published: str, ours: float, agrees: bool) -> None:
    assert Figure(ours, published, "").agrees == agrees
