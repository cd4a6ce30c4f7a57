"""Power: kernels at a device's power limit lose rate to collectives that run next to them."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.catalog import ROOT
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.read import load_device
from scaleproof.simulator.strategy.data_parallel.contention import (
    ContendedResources,
    PowerBudget,
)
from tests.simulator.frameworks.scenarios import scenario

# Gathers over NVLink next to each pass, on GPUs whose products are at the power limit.
NEXT_TO_PASSES = ("framework=pytorch-fsdp2", "training.zero=3", "cluster=eos-h100")
# Kernels at the limit, kernels that draw two thirds of it; collectives' processors draw a tenth.
BUDGET = PowerBudget(products=1.0, memory=0.65, channels=0.1, budget_W=500.0)


def device(name: str) -> Device:
    return load_device(ROOT / "devices" / f"{name}.yaml")


def test_a_power_limited_kernel_loses_the_power_of_the_collective() -> None:
    products, memory = BUDGET.lost(np.array([0.0, 50.0]))
    assert products == pytest.approx([0.1, 0.2])
    assert memory == pytest.approx([0.0, 0.0]), "both together stay below the limit"


def test_a_kernel_below_the_limit_loses_only_the_excess_power() -> None:
    """It draws 0.65, and 0.6 is left: it runs at 0.6 / 0.65 of its rate."""
    _, memory = BUDGET.lost(np.array([150.0]))
    assert memory == pytest.approx(1 - 0.6 / 0.65)


def test_a_kernel_keeps_a_fair_share() -> None:
    products, memory = BUDGET.lost(np.array([1e9]))
    assert products == pytest.approx(0.5)
    assert memory == pytest.approx(1 - 0.5 / 0.65)


def test_products_draw_the_sustained_power() -> None:
    """An H100's products are at its limit, an A100's below it, by the shares of their peaks that their files state."""
    h100, a100 = (PowerBudget.of_device(device(name), 0.1) for name in ("h100-80gb-sxm", "a100-80gb-sxm"))
    assert h100 is not None
    assert a100 is not None
    assert h100.products == 1
    assert a100.products < 0.9
    assert h100.budget_W == pytest.approx(0.88 * 700)
    assert PowerBudget.of_device(device("h100-80gb-sxm").model_copy(update={"power_limit_W": None}), 0.1) is None


def test_kernels_are_slowed_by_the_scarcest_resource() -> None:
    """ContendedResources do not add up: a collective with a fifth of the processors and of the power takes a fifth."""
    bound, rate = np.array([0.0, 0.5, 1.0]), np.full(3, 3e11)
    watts = np.full(3, 50.0)
    for processors, expected in ((0.3, [0.3, 0.3, 0.3]), (0.05, [0.2, 0.25, 0.3])):
        assert ContendedResources(processors, 1e12, BUDGET).taken(rate, watts, bound) == pytest.approx(expected)
    assert ContendedResources(0.05, 1e12).taken(rate, watts, bound) == pytest.approx([0.05, 0.175, 0.3])


def test_a_power_limit_lengthens_the_step() -> None:
    limited = scenario(*NEXT_TO_PASSES)
    cluster = limited.cluster.model_copy(update={"device": limited.cluster.device.model_copy(update={"power_limit_W": None})})
    free_s = timed(limited.copied(cluster=cluster)).step_time_s
    assert timed(limited).step_time_s > free_s
    switched_off = scenario(*NEXT_TO_PASSES, "framework.power=false")
    assert timed(switched_off).step_time_s == pytest.approx(free_s)


@pytest.mark.parametrize(("limit", "message"), [("0 W", "must be greater than 0"), ("700", "write a power such as")])
def test_a_power_limit_must_be_positive(limit: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        scenario(*NEXT_TO_PASSES, f"cluster.device.power_limit={limit}")
