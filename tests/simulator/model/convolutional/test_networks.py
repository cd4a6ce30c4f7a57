"""Convolutional networks keep what each of their steps needs, and a backward pass costs twice a forward pass."""

from __future__ import annotations

import itertools

import pytest

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import AlexNet, InceptionV3, ResNet, Vgg
from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Convnet,
    batch_norm,
    chain,
    concatenation,
    conv_norm_relu,
    convolution,
    layers_of,
    relu,
)
from scaleproof.simulator.model.operators import Convolution, SavedActivation

MODELS = {
    "resnet18": ResNet(depth=18), "resnet18 for CIFAR": ResNet(depth=18, small_images=True, image=32, classes=10),
    "resnet50": ResNet(), "vgg16": Vgg(), "alexnet": AlexNet(), "alexnet grouped": AlexNet(grouped=True),
    "inception": InceptionV3(auxiliary=False), "inception auxiliary": InceptionV3(),
}  # fmt: skip


def test_parameters_and_flops_of_variants_equal_published_ones() -> None:
    """The grouped AlexNet of the ONNX model zoo as onnx-tool prints it, and the Inception of timm's list."""
    assert AlexNet(grouped=True).parameters() / 1e6 == pytest.approx(60.96, abs=0.006)
    assert InceptionV3(auxiliary=False).parameters() / 1e6 == pytest.approx(23.83, abs=0.005)
    layers = InceptionV3(auxiliary=False).build_layers()
    assert sum(layer.forward_flops for layer in layers) / 2e9 == pytest.approx(5.713, abs=0.0005)


@pytest.mark.parametrize("name", MODELS)
def test_backward_flops_are_twice_forward_except_for_the_input_gradient_of_the_data(name: str) -> None:
    layers = MODELS[name].build_layers()
    first = next(operator for operator in layers[0].operators if isinstance(operator, Convolution))
    forward, backward = (sum(getattr(layer, which) for layer in layers) for which in ("forward_flops", "backward_flops"))
    assert backward == 2 * forward - first.forward_flops


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_equal_signature_cost_the_same(name: str) -> None:
    layers = MODELS[name].build_layers()
    assert len({layer.name for layer in layers}) == len(layers)
    for layer in layers:
        equal = [other for other in layers if other.signature == layer.signature]
        assert all(
            (other.operators, other.tensors, other.kept) == (layer.operators, layer.tensors, layer.kept) for other in equal
        )


@pytest.mark.parametrize("model", [ResNet(), Vgg(), AlexNet(), InceptionV3()], ids=lambda model: model.kind)
def test_each_layer_reads_the_output_of_the_previous_one(model: Convnet) -> None:
    layers = model.build_layers()
    for before, layer in itertools.pairwise(layers):
        read = sum(kept.elements for kept in layer.kept if kept.group == "input")
        assert read == before.output_elements, layer.name
    assert layers[-1].output_elements == model.classes


def test_a_larger_image_costs_convolutions_in_proportion_and_no_parameters() -> None:
    small, large = Vgg(), Vgg(image=448)
    assert small.parameters() == large.parameters()
    pairs = list(zip(small.build_layers(), large.build_layers(), strict=True))
    assert all(b.forward_flops == 4 * a.forward_flops for a, b in pairs if a.name.startswith("group"))
    assert all(b.forward_flops == a.forward_flops for a, b in pairs if a.name.startswith(("linear", "head")))


def test_grouped_convolutions_have_their_share_of_weights_and_flops() -> None:
    one, two = (layers_of([Block("a", "a", convolution(64, 3, groups=groups))], channels=32, side=8)[0] for groups in (1, 2))
    assert one.parameters == 2 * two.parameters == 64 * 32 * 9
    assert one.forward_flops == 2 * two.forward_flops


def test_each_activation_of_a_chain_is_kept_once() -> None:
    """The input, batch norm's input, and the ReLU's output, which the next convolution reads too."""
    [layer] = layers_of([Block("a", "a", chain(conv_norm_relu(4, 3), convolution(8, 1)))], channels=3, side=10)
    assert layer.kept == (
        SavedActivation("input", 300, group="input"),
        SavedActivation("activation", 400),
        SavedActivation("activation", 400),
    )


def test_the_output_of_a_relu_is_kept_in_addition_to_its_copy_in_a_concatenation() -> None:
    branches = concatenation(chain(convolution(4, 1), relu), chain(convolution(6, 1), batch_norm))
    [layer, reader] = layers_of([Block("a", "a", branches), Block("b", "b", convolution(2, 1))], channels=3, side=10)
    assert layer.kept == (
        SavedActivation("input", 300, group="input"),
        SavedActivation("activation", 400),
        SavedActivation("activation", 600),
    )
    assert reader.kept == (SavedActivation("input", 1000, group="input"),)
    assert layer.output_elements == 1000


def test_the_auxiliary_classifier_changes_one_layer_but_not_its_output() -> None:
    pairs = list(zip(InceptionV3().build_layers(), InceptionV3(auxiliary=False).build_layers(), strict=True))
    assert [a.name for a, b in pairs if a != b] == ["mixed7a"]
    assert all(a.output_elements == b.output_elements for a, b in pairs)


@pytest.mark.parametrize("model", [AlexNet(image=30), InceptionV3(image=40)], ids=lambda model: model.kind)
def test_images_too_small_for_the_network_are_rejected(model: Convnet) -> None:
    with pytest.raises(FieldError, match=r"model.image: the image becomes smaller than a window"):
        model.build_layers()
