"""Usable memory: what programs can allocate of a device's memory, and what plans leave free of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.scenario.read import load_device
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import memory_error

Make = Callable[..., Scenario]
GIB = 2**30
HYBRID = "strategy={kind: hybrid, workers: 4}"


def test_capacity_is_the_usable_memory(small: Make) -> None:
    assert memory(small()).capacity_bytes == 8 * GIB
    scenario = small("cluster.device.usable_memory=7.5 GiB")
    assert memory(scenario).capacity_bytes == 7.5 * GIB
    assert memory(small("cluster.device.usable_memory=7.5 GiB", "cluster.node.cores=2")).capacity_bytes == 7.5 * GIB / 4


@pytest.mark.parametrize(
    "overrides", [("cluster.device.memory=96 GiB",), ("cluster.device={base: h100-80gb-sxm, memory: 96 GiB}",)]
)
def test_an_overridden_memory_is_fully_usable(small: Make, overrides: tuple[str, ...]) -> None:
    on = "cluster.device=h100-80gb-sxm"
    assert memory(small(on)).capacity_bytes == pytest.approx(79.1 * GIB)
    assert memory(small(on, *overrides)).capacity_bytes == 96 * GIB


def test_usable_memory_above_memory_is_rejected(small: Make) -> None:
    with pytest.raises(ScenarioError, match="usable_memory: more than memory; give at most that"):
        small("cluster.device.usable_memory=9 GiB")


def test_devices_that_ship_offer_nearly_all_of_their_memory() -> None:
    devices = [load_device(name) for name in catalog.names("devices")]
    assert sum(device.usable_memory_bytes is not None for device in devices) >= 15
    shared = [device for device in devices if device.kernels is not None and device.kernels.generation == "apple"]
    assert all(0.9 < device.capacity_bytes / device.memory_bytes <= 1 for device in devices if device not in shared)
    assert all(device.capacity_bytes == 0.75 * device.memory_bytes for device in shared), "Metal's working set"


def test_plans_fit_with_the_wanted_probability(small: Make) -> None:
    planned = plan(small(HYBRID, "cluster.device.usable_memory=7 GiB"), top=1)
    error = memory_error(planned.best[0].scenario)
    assert error is not None
    assert error.below(7 * GIB / planned.capacity_bytes) == pytest.approx(0.9)
    assert planned.room.fits == 0.9
    surer, bolder = (plan(small(HYBRID), top=1, fits=fits).capacity_bytes for fits in (0.99, 0.01))
    assert surer < planned.capacity_bytes * 8 / 7 < bolder == 8 * GIB
    assert plan(small(HYBRID), top=1, memory=6.0 * GIB).capacity_bytes == 6 * GIB
    with pytest.raises(InputError, match="--fits 1: the probability that a plan fits; give more than 0 and less than 1"):
        plan(small(HYBRID), fits=1.0)
