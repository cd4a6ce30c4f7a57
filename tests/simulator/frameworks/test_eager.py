"""Eager PyTorch: passes over attention scores, autocast, dropout; what compilers fuse and pad; layouts of images."""

from __future__ import annotations

from functools import cache

import pytest

from scaleproof.simulator.common.catalog import ROOT
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.frameworks import Execution, Framework, TrainingWork, shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import Gpt
from scaleproof.simulator.model.layers import Layer, Shard
from scaleproof.simulator.model.recompute import NO_RECOMPUTE
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.read import load_device
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.frameworks.scenarios import scenario

DEVICE = load_device(ROOT / "devices" / "a100-80gb-sxm.yaml")
DDP, COMPILED, MEGATRON = (shipped(name) for name in ("pytorch-ddp", "torchtitan-compiled", "megatron-lm-2021"))
PLAIN = TrainingWork("bf16", "adam", NO_RECOMPUTE)
AUTOCAST = PLAIN._replace(autocast=True)
SAMPLES = 16


@cache
def block(flash: bool = False, dropout: bool = False) -> Layer:
    """A block of GPT-2."""
    model = Gpt(layers=1, hidden=768, heads=12, vocabulary=64, sequence=1024, flash=flash, dropout=dropout)
    return next(layer for layer in model.build_layers() if not layer.pinned_to_end)


def gpt2(*overrides: str) -> Scenario:
    """GPT-2 of 124 million parameters on one A100."""
    model = "model={kind: gpt, layers: 12, hidden: 768, heads: 12, vocabulary: 50257, sequence: 1024, tied: true, flash: true}"
    return scenario("cluster=dgx-a100", "strategy.workers=1", "batch=16", model, *overrides)


def step_s(*overrides: str) -> float:
    return timed(gpt2(*overrides)).step_time_s


def kernels_s(framework: Framework, layer: Layer, work: TrainingWork = PLAIN) -> tuple[float, float]:
    """Seconds of a layer's kernels on an A100, without host time."""
    return Execution(DEVICE, framework.ablated("host"), work).layer_s(layer, SAMPLES)


def moved_s(bytes_per_element: float, elements: float) -> float:
    kernels = DEVICE.kernels
    assert kernels is not None
    return bytes_per_element * elements / (DEVICE.memory_bandwidth_Bps * kernels.memory_share)


def of_passes_s(framework: Framework, work: TrainingWork, layer: Layer) -> list[float]:
    """Seconds that passes over scores take in addition to a fused softmax, in both passes of training."""
    whole, fused = kernels_s(framework, layer, work), kernels_s(framework.ablated("attention passes"), layer, work)
    return [one - other for one, other in zip(whole, fused, strict=True)]


def test_eager_attention_takes_the_time_of_the_bytes_of_its_passes() -> None:
    """Scale 2, mask 4, softmax 2 or 3 accesses of two bytes, less a fused softmax; and copies of queries, keys and values."""
    scores, inputs = SAMPLES * 12 * 1024**2, SAMPLES * 3 * 1024 * 768
    for found_s in of_passes_s(DDP, PLAIN, block()):
        assert found_s == pytest.approx(moved_s(2 * (2 + 4), scores) + moved_s(2 * 2, inputs), rel=1e-6)


def test_autocast_computes_softmax_in_32_bits_between_casts() -> None:
    """A cast before it (6 bytes), twice the bytes of its accesses, a cast after it (6 bytes)."""
    scores = SAMPLES * 12 * 1024**2
    plain, wide = (of_passes_s(DDP, work, block()) for work in (PLAIN, AUTOCAST))
    for accesses, before_s, after_s in zip((2, 3), plain, wide, strict=True):
        assert after_s - before_s == pytest.approx(moved_s(6 + 2 * accesses + 6, scores), rel=1e-6)


def test_dropout_of_scores_has_the_precision_of_softmax() -> None:
    scores = SAMPLES * 12 * 1024**2
    dropped, kept = (of_passes_s(DDP, AUTOCAST, block(dropout=dropout)) for dropout in (True, False))
    for more_s, less_s in zip(dropped, kept, strict=True):
        assert more_s - less_s == pytest.approx(moved_s(2 * 2, scores), rel=1e-6)


def test_megatron_leaves_its_fused_softmax_where_keys_are_too_many() -> None:
    """Casts 12, scale 8, mask 8, softmax 8 or 12 bytes, less a fused softmax."""
    assert of_passes_s(MEGATRON, PLAIN, block()) == pytest.approx([0, 0], abs=1e-12)
    model = Gpt(layers=1, hidden=768, heads=12, vocabulary=64, sequence=4096, flash=False)
    longer = next(layer for layer in model.build_layers() if not layer.pinned_to_end)
    scores = SAMPLES * 12 * 4096**2
    expected = [moved_s(12 + 8 + 8 + own - fused, scores) for own, fused in ((8, 4), (12, 6))]
    assert of_passes_s(MEGATRON, PLAIN, longer) == pytest.approx(expected, rel=1e-6)


def test_transformer_engine_scales_and_masks_within_softmax() -> None:
    """Also with dropout, whose precision is that of a softmax in 16 bits."""
    core = shipped("megatron-core-0.12")
    assert of_passes_s(core, PLAIN, block(dropout=True)) == pytest.approx([0, 0], abs=1e-12)


def test_autocast_moves_norms_and_sums_in_32_bits_and_casts_them() -> None:
    """Of each norm and the sum before it: 14 bytes forward and 28 backward; of weights a cast."""
    layer = block(flash=True)
    forward_s, backward_s = (
        wide - plain for wide, plain in zip(kernels_s(DDP, layer, AUTOCAST), kernels_s(DDP, layer), strict=True)
    )
    norms = 2 * SAMPLES * 1024 * 768
    assert forward_s == pytest.approx(moved_s(14, norms) + moved_s(6, layer.parameters), rel=1e-6)
    assert backward_s == pytest.approx(moved_s(28, norms), rel=1e-6)


def test_dropout_is_a_kernel_of_its_own_in_eager_software() -> None:
    elements = SAMPLES * sum(one.elements for one in block(True, True).kept if one.name == "dropout mask")
    fused = DDP.model_copy(update={"extra_bytes": {k: v for k, v in DDP.extra_bytes.items() if k != "dropout"}})
    eager_s, fused_s = (kernels_s(one, block(True, True))[0] for one in (DDP, fused))
    assert eager_s - fused_s == pytest.approx(moved_s(4, elements), rel=1e-6)
    assert COMPILED.extra_bytes["dropout"].forward == MEGATRON.extra_bytes["dropout"].forward == 0


def test_the_framework_decides_on_autocast_unless_the_training_does() -> None:
    assert gpt2("framework=pytorch-ddp").training.autocast is True
    assert not gpt2("framework=torchtitan").training.autocast
    assert not gpt2("framework=pytorch-ddp", "training.autocast=false").training.autocast
    assert gpt2("framework=torchtitan", "training.autocast=true").training.autocast is True
    for precision in ("fp32", "tf32"):
        assert gpt2("framework=pytorch-ddp", f"training.precision={precision}").training.autocast is None
    copied = gpt2("framework=pytorch-ddp").copied(framework=shipped("torchtitan"))
    assert not copied.training.autocast
    assert "autocast" not in copied.training.model_fields_set


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.precision=fp32",), "autocast: not with fp32; set training.precision to bf16 or fp16"),
        (("framework=jax-maxtext",), "autocast: jax-maxtext has no autocast; leave it out, or use pytorch-ddp"),
        (("training.reduce_precision=bf16",), "reduce_precision: gradients are fp32, not bf16"),
    ],
)
def test_autocast_is_refused_where_there_is_none(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        gpt2("training.autocast=true", *overrides)


def test_autocast_has_32_bit_parameters_in_place_of_16_bit_ones_with_master_copies() -> None:
    wide, narrow = (memory(gpt2(f"training.autocast={on}")).worst.holders_bytes for on in ("true", "false"))
    parameters = 124_439_808
    assert wide["parameters"] == pytest.approx(4 * parameters)
    assert narrow["parameters"] == pytest.approx(2 * parameters)
    assert (wide["master_parameters"], narrow["master_parameters"]) == pytest.approx((0, 4 * parameters))
    assert wide["optimizer_states"] == narrow["optimizer_states"]
    # inputs of two norms a block, and of the last one
    stream = 16 * 1024 * 768 * (2 * 12 + 1)
    assert wide["activations"] - narrow["activations"] == pytest.approx(2 * stream)


def test_compilers_pad_odd_vocabularies() -> None:
    """They copy operands whose rows are not aligned, which costs a few per cent; eager products get slower by a fifth."""
    odd_s, even_s = (step_s("framework=torchtitan-compiled", f"model.vocabulary={words}") for words in (50257, 50304))
    assert 1.0 < odd_s / even_s < 1.06
    eager_odd_s, eager_even_s = (step_s("framework=pytorch-ddp", f"model.vocabulary={words}") for words in (50257, 50304))
    assert eager_odd_s / eager_even_s > 1.15
    aligned = "framework=torchtitan-compiled", "model.vocabulary=50304"
    without = gpt2(*aligned).framework.ablated("padding")
    assert timed(gpt2(*aligned).copied(framework=without)).step_time_s == step_s(*aligned)


def images(precision: str, *overrides: str) -> Scenario:
    return scenario(
        "cluster=dgx-a100", "strategy.workers=1", "batch=128", "model=resnet50", f"training.precision={precision}", *overrides
    )


def test_convolutions_transpose_images_that_are_stored_by_channel() -> None:
    tf32, narrow = images("tf32"), images("bf16", "framework=pytorch-ddp-channels-last")
    # PyTorch stores images by channel unless a script says otherwise
    transposed = images("bf16")
    assert timed(transposed).step_time_s > 1.2 * timed(narrow).step_time_s
    # twice the bytes, and transposes
    assert timed(tf32).step_time_s > 2.2 * timed(narrow).step_time_s
    without = tf32.copied(framework=tf32.framework.ablated("transposes"))
    assert timed(without).step_time_s < timed(tf32).step_time_s / 1.2


def test_compilers_store_images_channels_last() -> None:
    compiled = images("bf16", "framework=pytorch-ddp-compiled")
    assert timed(compiled).step_time_s == timed(compiled.copied(framework=compiled.framework.ablated("transposes"))).step_time_s


def test_parts_that_are_gathered_or_scattered_along_sequences_are_put_together_by_copies() -> None:
    model, tensor = Gpt(layers=1, hidden=768, heads=12, vocabulary=64, sequence=1024), 4
    layer = model.build_layers(Shard(tensor, sequence=True, regathers=False))[1]
    fsdp2 = shipped("pytorch-fsdp2")
    copying, without = (kernels_s(one, layer) for one in (fsdp2, fsdp2.model_copy(update={"sequence_accesses": 0.0})))
    # a gather and a scatter of both branches in each pass, of all tokens in 16 bits that are read and written
    expected_s = moved_s(2 * 2, 2 * 2 * SAMPLES * 1024 * 768)
    assert [one - other for one, other in zip(copying, without, strict=True)] == pytest.approx([expected_s] * 2, rel=1e-6)
