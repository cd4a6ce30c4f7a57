"""Cards whose tensor cores sum in 32 bits at a part of their generation's rate."""

from __future__ import annotations

from typing import Final

import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.attention import flash_s
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.frameworks.execution import framework_kernels
from scaleproof.simulator.model.operators import Attention
from scaleproof.simulator.scenario.read import load_device

FULL: Final = {
    "name": "full", "peak": {"bf16": "330 TFLOP/s"}, "memory": "24 GiB", "memory_bandwidth": "1 TB/s", "power_limit": "350 W",
    "kernels": {"generation": "ada", "processors": 128},
}  # fmt: skip
HALF: Final = FULL | {"peak": {"bf16": "165 TFLOP/s"}, "kernels": {"generation": "ada", "processors": 128, "tensor_rate": 0.5}}


def rate(device: Device, side: int) -> float:
    """FLOP/s of a square product in training."""
    assert device.kernels is not None
    moved = 2 * side**2
    on = device.speed("bf16", device.kernels)
    return 2 * side**3 / float(products_s(on, side, side, side, 1, 2 * moved, moved))


def attention_rate(device: Device) -> float:
    """FLOP/s of a long causal forward pass of flash attention 2."""
    assert device.kernels is not None
    on = device.speed("bf16", framework_kernels(device.kernels, "flash-2"))
    operator = Attention("attention", heads=32, key_heads=32, queries=16384, keys=16384, width=128, value_width=128, flash=True)
    return 0.5 * operator.forward_flops / flash_s(operator, 1, on)


def test_power_limits_a_card_of_half_the_rate_less() -> None:
    """Both have the same FLOP per joule, so that the full-rate card is not twice as fast."""
    full, half = Device.model_validate(FULL), Device.model_validate(HALF)
    assert half.kernels is not None
    assert full.kernels is not None
    assert half.kernels.sustained_share == pytest.approx(2 * full.kernels.sustained_share)
    assert 1 < rate(full, 8192) / rate(half, 8192) < 2
    assert 1 < attention_rate(full) / attention_rate(half) < 2


def test_a_lower_power_limit_slows_a_card_that_has_power_to_spare_less_than_in_proportion() -> None:
    half = Device.model_validate(HALF)
    limited = Device.model_validate(HALF | {"power_limit": "350 W", "kernels": half.kernels}).model_copy(
        update={"power_limit_W": 280.0}
    )
    assert 0.85 < rate(limited, 8192) / rate(half, 8192) < 1


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("rtx-4090", 150e12, 173e12), ("rtx-3090", 60e12, 77e12), ("rtx-5090", 175e12, 240e12), ("rtx-2080-ti", 44e12, 54e12)],
)
def test_geforce_cards_reach_what_is_measured_of_large_products(name: str, least: float, most: float) -> None:
    device = load_device(name)
    precision = "bf16" if "bf16" in device.peak_flops else "fp16"
    own = device.model_copy(update={"peak_flops": {"bf16": device.peak_flops[precision]}})
    assert least <= rate(own, 8192) <= most


def test_attention_of_a_geforce_card_is_nearly_as_fast_as_its_products() -> None:
    device = load_device("rtx-4090")
    assert 0.8 * rate(device, 8192) < attention_rate(device) < device.peak_flops["bf16"]
