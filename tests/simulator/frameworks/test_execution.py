"""Execution: effects of the host, attention, 8-bit products and recomputation on layer times of a described device."""

from __future__ import annotations

from functools import cache

import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.products import narrow_products
from scaleproof.simulator.common.catalog import ROOT
from scaleproof.simulator.common.units import parse_time_s
from scaleproof.simulator.frameworks import IDEAL, Execution, Framework, TrainingWork, shipped
from scaleproof.simulator.frameworks.framework import PerPass
from scaleproof.simulator.model import Gpt, Llama
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention
from scaleproof.simulator.model.recompute import NO_RECOMPUTE
from scaleproof.simulator.scenario.read import load_device

MEGATRON = shipped("megatron-core-0.12")
WORK = TrainingWork("bf16", "adam", NO_RECOMPUTE)


@cache
def device(name: str = "h100-80gb-sxm") -> Device:
    return load_device(ROOT / "devices" / f"{name}.yaml")


def block(hidden: int, sequence: int = 1024, flash: bool = True) -> Layer:
    """A transformer block with heads of 64, or of 16 where it is tiny."""
    model = Gpt(layers=1, hidden=hidden, heads=max(1, hidden // 64), vocabulary=64, sequence=sequence, flash=flash)
    return next(layer for layer in model.build_layers() if not layer.pinned_to_end)


def with_host(framework: Framework, **changes: object) -> Framework:
    return framework.model_copy(update={"host": framework.host.model_copy(update=changes)})


def kernels_alone_s(framework: Framework, layer: Layer, samples: float) -> tuple[float, float]:
    """Seconds of the layer's kernels, without host time."""
    without_host = with_host(framework, kernel_s=0.0, collective_s=0.0, blocking=False)
    return Execution(device(), without_host, WORK).layer_s(layer, samples)


def test_small_layers_are_host_bound_and_large_ones_are_not() -> None:
    tiny, large = block(16, sequence=16), block(8192, sequence=2048)
    kernels = device().kernels
    assert kernels is not None
    launches = MEGATRON.host.block
    kernel_host_s = parse_time_s("25 us") * kernels.host_slowdown
    found = Execution(device(), MEGATRON, WORK).layer_s(tiny, 1)
    assert found == pytest.approx((launches.forward * kernel_host_s, launches.backward * kernel_host_s), rel=0.02)
    assert Execution(device(), MEGATRON, WORK).layer_s(large, 4) == pytest.approx(kernels_alone_s(MEGATRON, large, 4), rel=1e-3)


def test_hooks_of_modules_need_stage_3_and_those_of_gradients_any_stage() -> None:
    tiny, framework = block(16, sequence=16), shipped("hf-trainer-deepspeed")
    kernels = device().kernels
    assert kernels is not None
    hooks = framework.hooks
    without, *stages = (Execution(device(), framework, WORK._replace(zero=zero)).layer_s(tiny, 1) for zero in range(4))
    modules_s, gradients_s = hooks.modules * hooks.module_s, len(tiny.tensors) * hooks.gradient_s
    for stage, passes in enumerate(stages, 1):
        added = (passes[0] - without[0]) / kernels.host_slowdown, (passes[1] - without[1]) / kernels.host_slowdown
        assert added == pytest.approx((modules_s * (stage == 3), gradients_s + modules_s * (stage == 3)), rel=0.02)
    trained = Execution(device(), framework.ablated("hooks"), WORK._replace(zero=3)).layer_s(tiny, 1)
    assert trained == without


def test_a_pass_is_never_faster_than_host_or_device() -> None:
    """Host and device overlap: a pass takes at least the maximum and at most the sum of their times."""
    host = MEGATRON.host
    for hidden in (64, 256, 512, 1024, 2048, 4096):
        layer = block(hidden)
        both = Execution(device(), MEGATRON, WORK).layer_s(layer, 1)
        kernels_s = kernels_alone_s(MEGATRON, layer, 1)
        for found_s, kernel_s, count in zip(both, kernels_s, (host.block.forward, host.block.backward), strict=True):
            host_s = count * host.kernel_s
            assert max(kernel_s, host_s) <= found_s * (1 + 1e-12)
            assert found_s <= kernel_s + host_s


@pytest.mark.parametrize("hidden", [64, 1024, 4096])
def test_a_host_that_waits_for_each_kernel_adds_its_time(hidden: int) -> None:
    """CUDA_LAUNCH_BLOCKING=1."""
    layer, host = block(hidden), MEGATRON.host
    blocking = Execution(device(), with_host(MEGATRON, blocking=True), WORK).layer_s(layer, 2)
    kernels_s = kernels_alone_s(MEGATRON, layer, 2)
    counts = (host.block.forward, host.block.backward)
    assert blocking == pytest.approx([one + count * host.kernel_s for one, count in zip(kernels_s, counts, strict=True)])


def test_calibrated_factors_scale_kernels_and_host() -> None:
    tiny, large = block(16, sequence=16), block(8192)
    slower = MEGATRON.model_copy(update={"kernel_scale": 1.5})
    assert kernels_alone_s(slower, large, 4) == pytest.approx([1.5 * one for one in kernels_alone_s(MEGATRON, large, 4)])
    hosted = MEGATRON.model_copy(update={"host_scale": 2.0})
    plain_s, twice_s = (Execution(device(), one, WORK).layer_s(tiny, 1)[0] for one in (MEGATRON, hosted))
    assert twice_s == pytest.approx(2 * plain_s, rel=0.02)


def test_extra_bytes_take_the_time_of_memory_bandwidth() -> None:
    layer, kernels = block(1024), device().kernels
    assert kernels is not None
    unfused = IDEAL.model_copy(update={"extra_bytes": {"norm": PerPass(forward=4, backward=8)}})
    plain, more = (Execution(device(), one, WORK).layer_s(layer, 1) for one in (IDEAL, unfused))
    # two norms of 1,024 tokens
    elements = 2 * 1024 * 1024
    reached_Bps = device().memory_bandwidth_Bps * kernels.memory_share
    assert more[0] - plain[0] == pytest.approx(4 * elements / reached_Bps, rel=1e-6)
    assert more[1] - plain[1] == pytest.approx(8 * elements / reached_Bps, rel=1e-6)


def test_the_optimizer_moves_more_bytes_where_it_is_not_fused() -> None:
    parameters = 1e9
    moved = [Execution(device(), one, WORK).optimizer_s(parameters) for one in (IDEAL, MEGATRON, shipped("pytorch-fsdp2"))]
    # fused Adam reads and writes 28 bytes a parameter
    assert moved == pytest.approx([moved[0] * (28 + more) / 28 for more in (0, 18, 68)])


@pytest.mark.parametrize("hidden", [4096, 12288])
def test_8_bit_products_are_faster_in_large_layers(hidden: int) -> None:
    layer = block(hidden, sequence=2048)
    for recipe in ("delayed", "current", "blockwise", "mxfp8"):
        narrow, plain = (
            sum(Execution(device(), MEGATRON, TrainingWork(precision, "adam", NO_RECOMPUTE, recipe)).layer_s(layer, 4))
            for precision in ("fp8", "bf16")
        )
        # products at most twice as fast, and all else as fast
        assert plain / 2 < narrow < plain


def test_8_bit_products_have_the_rates_that_were_measured_in_8_bits() -> None:
    """Training sustains at most what 8-bit products reach in bursts, and of 16-bit shares as much as the best products do."""
    h100 = device()
    assert h100.kernels is not None
    speed = h100.narrow_speed("fp8", h100.kernels, "mxfp8")
    assert speed.products == h100.kernels.products["fp8"]
    assert speed.operand_bytes == 1 + 1 / 32
    assert speed.peak_flops == h100.peak_flops["fp8"]
    assert speed.kernels.sustained_share == pytest.approx(h100.kernels.sustained_share * narrow_products().peak_share)
    slower = h100.kernels.products["fp8"].model_copy(update={"burst_share": 0.4})
    limited = h100.kernels.model_copy(update={"products": {**h100.kernels.products, "fp8": slower}})
    layer, work = block(8192, sequence=2048), TrainingWork("fp8", "adam", NO_RECOMPUTE)
    times_s = [
        sum(Execution(h100.model_copy(update={"kernels": kernels}), IDEAL, work).layer_s(layer, 4))
        for kernels in (h100.kernels, limited)
    ]
    assert times_s[1] > 1.3 * times_s[0]


def test_8_bit_products_save_little_in_small_layers() -> None:
    """Casts grow with what products read, and savings with what they compute; scales of each row cost the most casts."""

    def relative(hidden: int, recipe: str) -> float:
        layer = block(hidden)
        works = TrainingWork("fp8", "adam", NO_RECOMPUTE, recipe), WORK
        narrow_s, plain_s = (sum(Execution(device(), IDEAL, work).layer_s(layer, 1)) for work in works)
        return narrow_s / plain_s

    found = [relative(hidden, "delayed") for hidden in (256, 1024, 4096, 16384)]
    assert found[1:] == sorted(found[1:], reverse=True)
    assert min(found[:2]) > 0.95
    assert relative(1024, "rowwise") > 1


@pytest.mark.parametrize("version", ["flash-1-triton", "flash-2", "best"])
@pytest.mark.parametrize("name", ["a10g", "l4"])
def test_attention_shares_of_a_device_win_over_those_of_its_generation(name: str, version: str) -> None:
    """An A10G and an L4 have the libraries of an A100, but state how fast attention is on them."""
    own, layer = device(name), block(4096, sequence=8192)
    assert own.kernels is not None
    attention = tuple(o for o in layer.operators if isinstance(o, Attention))
    framework = IDEAL.model_copy(update={"attention": {"any": version}})

    def seconds(**shares: float | None) -> tuple[float, float]:
        kernels = own.kernels.model_copy(update=shares)  # type: ignore[union-attr]
        return Execution(own.model_copy(update={"kernels": kernels}), framework, WORK).operators_s(layer, attention, 1)

    assert own.kernels.flash_forward_share is not None
    half = {field: getattr(own.kernels, field) / 2 for field in ("flash_forward_share", "flash_backward_share")}
    assert seconds(**half) == pytest.approx([2 * one for one in seconds()], rel=0.01)
    # without shares of its own it has those of the version on its generation
    without = seconds(flash_forward_share=None, flash_backward_share=None)
    assert without[0] != pytest.approx(seconds()[0], rel=0.01)


def test_a_device_that_was_measured_already_contains_its_software() -> None:
    flat = device().model_copy(update={"kernels": None, "efficiency": 0.5})
    layer = block(1024)
    for framework in (IDEAL, MEGATRON, shipped("megatron-deepspeed-2022")):
        assert Execution(flat, framework, WORK).layer_s(layer, 2) == flat.layer_s(layer, 2, "bf16")
        assert Execution(flat, framework, WORK).optimizer_s(1e6) == flat.optimizer_s(1e6, "adam", "bf16")


def test_the_host_handles_each_expert_of_a_grouped_product() -> None:
    """One product forward and two backward of each of two grouped ones; twice as much with casts to few bits."""
    layer = next(one for one in mixture_model(8).build_layers() if one.expert_parameters)
    framework = shipped("megatron-core-2026")
    for work, casts in ((WORK, 1), (WORK._replace(precision="fp8"), 2)):
        found = Execution(device(), framework, work).layer_s(layer, 1)
        block, mixture = framework.host.block, framework.host.mixture
        assert block is not None
        launched = (block.forward + mixture.forward + 2 * 8 * casts, block.backward + mixture.backward + 4 * 8 * casts)
        slowdown = device().kernels.host_slowdown  # type: ignore[union-attr]
        assert found == pytest.approx([count * 25e-6 * slowdown for count in launched], rel=0.02)


def test_graphs_leave_the_kernels_that_they_do_not_have() -> None:
    layer = next(one for one in mixture_model(8).build_layers() if one.expert_parameters)
    names = ("megatron-core-2026", "megatron-core-2026-graphs", "megatron-core-2026-full-graphs")
    eager, partly, fully = (sum(Execution(device(), shipped(name), WORK).layer_s(layer, 1)) for name in names)
    assert fully < 0.2 * partly < 0.2 * eager


def mixture_model(count: int) -> Llama:
    """A tiny mixture, bound by the host."""
    experts = {"count": count, "active": 2, "feedforward": 64}
    return Llama.model_validate(
        {"layers": 1, "hidden": 64, "heads": 1, "feedforward": 64, "vocabulary": 64, "sequence": 16, "experts": experts}
    )
