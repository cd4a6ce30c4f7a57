"""What a power limit sustains of a device's peak."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, at_power_limit, power_constants
from scaleproof.simulator.common import catalog
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device

KERNELS = Kernels.model_validate(
    {
        "generation": "hopper", "processors": 132, "tile_share": 0.8, "sustained_share": 0.6, "sustained_at": "500 W",
        "memory_share": 0.85, "launch": "3 us",
    }
)  # fmt: skip


def share_at(watts: float) -> float:
    return at_power_limit(KERNELS, watts).sustained_share


def test_the_share_at_the_stated_limit_is_the_stated_one() -> None:
    assert share_at(500) == 0.6
    assert at_power_limit(KERNELS, None) == KERNELS
    unstated = KERNELS.model_copy(update={"sustained_at_W": None})
    assert at_power_limit(unstated, 100) == unstated


def test_the_rate_rises_with_the_cube_root_of_the_limit_and_falls_in_proportion() -> None:
    assert power_constants()["clock_exponent"] == 3
    assert share_at(500 * 1.5**3) == pytest.approx(0.6 * 1.5)
    assert share_at(500 * 8) == 1.0, "no more than the peak"
    assert share_at(250) == pytest.approx(0.3)


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_a_lower_limit_never_sustains_more(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < share_at(low) <= share_at(high) <= 1


def test_the_theory_agrees_with_published_products() -> None:
    """Of an A100 at 300 and 400 W: between what best shapes gain, and what long products in bursts do; of Blackwells at 1,000
    and 1,200 W, within a few per cent."""
    pcie = load_device(catalog.ROOT / "devices" / "a100-80gb-pcie.yaml").kernels
    assert pcie is not None
    assert pcie.sustained_share == at_power_limit(pcie, 300).sustained_share
    low = pcie.model_copy(update={"sustained_share": 0.5})
    assert 271.2 / 252.9 < at_power_limit(low, 400).sustained_share / 0.5 < 260 / 230
    b200, gb200 = (load_device(catalog.ROOT / "devices" / f"{name}.yaml") for name in ("b200-180gb-sxm", "gb200-186gb"))
    assert b200.kernels is not None
    assert gb200.kernels is not None
    gained = at_power_limit(b200.kernels, 1200).sustained_share * b200.peak_flops["bf16"]
    assert gained == pytest.approx(gb200.kernels.sustained_share * gb200.peak_flops["bf16"], rel=0.04)


def test_the_limit_of_a_scenario_changes_its_step() -> None:
    limits = ["200 W", "350 W", "500 W", "700 W", "1000 W"]
    overrides = ["cluster=dgx-h100", "batch=64", "strategy.workers=8"]
    times_s = [
        predict(load("llama-2-7b", [*overrides, f"cluster.device.power_limit={limit}"]), interval=False).step_time_s
        for limit in limits
    ]
    assert all(slow > fast for slow, fast in pairwise(times_s))
    assert times_s[0] > 1.2 * times_s[-1]
