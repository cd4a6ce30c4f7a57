"""GPUs by the names that drivers give them."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common import catalog
from scaleproof.validator.calibration import gpus


def test_every_name_that_drivers_give_is_of_a_device_that_ships() -> None:
    assert set(gpus._SHIPPED.values()) <= set(catalog.names("devices"))


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "h100-80gb-sxm", "H100-80GB-SXM"])
def test_a_device_has_several_names(name: str) -> None:
    assert gpus.shipped_device(name) == "h100-80gb-sxm"


def test_what_does_not_ship_is_unknown() -> None:
    assert gpus.shipped_device("Unheard Of") == ""
    assert gpus.shipped("Unheard Of") is None
