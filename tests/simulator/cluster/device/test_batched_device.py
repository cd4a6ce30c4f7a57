"""A batch of devices has the numbers of each point's own device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.device.batched_device import BatchedDevice
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.batched_numbers import BatchedNumber, BatchedPoints
from scaleproof.simulator.scenario.load import load

DEVICE = load("resnet50-ring-p100").cluster.device
LAYERS = load("megatron-175b-3d-selene").model.build_layers()[:3]
AT = np.array([1, 0, 2, 1])
shares = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3)


def several(change: str, values: list[float]) -> tuple[BatchedDevice, list[Device]]:
    each = [DEVICE.model_copy(update={change: value}) for value in values]
    return BatchedDevice(BatchedPoints(len(AT)), each, AT), each


def values(batched: Any) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    found = batched if isinstance(batched, tuple) else (batched,)
    assert all(isinstance(one, BatchedNumber) for one in found)
    return [one.values for one in found]


NUMBERS = {
    "memory_bandwidth_Bps": lambda one: one.memory_bandwidth_Bps,
    "peak_flops": lambda one: one.peak_flops["fp32"],
}


@given(shares)
def test_per_device_evaluates_a_function_for_each_points_device(found: list[float]) -> None:
    devices, each = several("efficiency", found)
    for layer in LAYERS:
        batched = devices.per_device(layer.name, lambda one, layer=layer: one.layer_s(layer, 8, "fp32"))
        for varying, *own in zip(values(batched), *(one.layer_s(layer, 8, "fp32") for one in each), strict=True):
            np.testing.assert_array_equal(varying, np.array(own)[AT])


def test_a_function_is_called_once_for_each_device() -> None:
    devices, each = several("efficiency", [0.2, 0.4, 0.8])
    called: list[Device] = []
    for _ in range(2):
        devices.per_device("same key", lambda one: called.append(one) or (1.0,))  # type: ignore[func-returns-value]
    assert called == each


@pytest.mark.parametrize("name", NUMBERS)
@given(shares)
def test_each_point_uses_the_numbers_of_its_own_device(name: str, found: list[float]) -> None:
    devices, each = several("efficiency", found)
    (batched,) = values(NUMBERS[name](devices))
    np.testing.assert_array_equal(batched, np.array([NUMBERS[name](one) for one in each])[AT])


def test_changes_apply_to_every_device() -> None:
    devices, each = several("memory_bandwidth_Bps", [1e11, 2e11, 4e11])
    twice = devices.changed(lambda one: one.model_copy(update={"memory_bandwidth_Bps": 2 * one.memory_bandwidth_Bps}))
    np.testing.assert_array_equal(twice.memory_bandwidth_Bps.values, 2 * devices.memory_bandwidth_Bps.values)
    assert [one.memory_bandwidth_Bps for one in each] == [1e11, 2e11, 4e11]


def test_numbers_shared_by_all_devices_stay_scalars() -> None:
    devices, each = several("efficiency", [0.2, 0.3, 0.4])
    assert (devices.name, devices.kernels, devices.memory_bytes) == (each[0].name, each[0].kernels, each[0].memory_bytes)
    np.testing.assert_array_equal(values(devices.efficiency)[0], [0.3, 0.2, 0.4, 0.3])
    assert several("efficiency", [None, None, None])[0].efficiency is None  # type: ignore[list-item]
