"""GPUs by the names that drivers give them."""

from __future__ import annotations

from scaleproof.simulator.common import catalog
from scaleproof.validator.calibration.gpu_links import nominal_Bps
from scaleproof.validator.kernels import devices


def test_every_name_that_drivers_give_is_of_a_device_that_ships() -> None:
    assert set(devices._SHIPPED.values()) <= set(catalog.names("devices"))


def test_links_of_amds_gpus_are_those_of_infinity_fabric() -> None:
    # to each of seven others
    assert devices.shipped_device("AMD Instinct MI300X") == "mi300x-192gb-oam"
    assert nominal_Bps("AMD Instinct MI300X") == 7 * 64e9
    assert nominal_Bps("mi355x-288gb-oam") == 7 * 76.8e9
