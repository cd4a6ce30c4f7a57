from __future__ import annotations

from dataclasses import replace

import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.validator.kernels.data_sheet import DataSheet, product_rates
from scaleproof.validator.kernels.products import resident_bytes

FACTS = DataSheet("hopper", 132, 1.98e9, 989e12, 3350e9, 50e6)


@pytest.mark.parametrize(
    ("facts", "clock_GHz"),
    [
        (FACTS, 1.83),  # although the highest clock is 1.98 GHz
        (DataSheet("ampere", 108, 1.41e9, 312e12, 2039e9, 40e6), 1.41),
        (DataSheet("turing", 40, 1.59e9, 65e12, 320e9, 4e6), 1.59),
    ],
)
def test_the_clock_of_a_peak_follows_from_a_power_of_two_of_flops_per_cycle(facts: DataSheet, clock_GHz: float) -> None:
    assert facts.peak_clock_GHz == pytest.approx(clock_GHz, rel=0.01)


def test_a_higher_clock_leaves_a_smaller_share_of_the_peak() -> None:
    faster = replace(FACTS, clock_Hz=1.3 * FACTS.clock_Hz, peak_flops=1.3 * FACTS.peak_flops)
    slow, fast = product_rates(FACTS), product_rates(faster)
    assert fast.tile_share < slow.tile_share
    # long bursts reach the same rate
    assert fast.burst_share * faster.peak_flops == pytest.approx(slow.burst_share * FACTS.peak_flops, rel=0.03)


def test_only_rates_in_8_bits_have_a_cast() -> None:
    assert product_rates(FACTS).cast is None
    cast = product_rates(FACTS, "fp8").cast
    assert cast is not None
    assert cast.cache_bytes == 25e6


def test_caches_with_two_partitions_keep_half_as_much() -> None:
    assert [resident_bytes(name, 2.0) for name in ("ada", "hopper", "blackwell")] == [2.0, 1.0, 1.0]


def test_facts_of_a_device_need_its_clock_and_cache() -> None:
    given = {
        "name": "own", "peak": {"bf16": "989 TFLOP/s"}, "memory": "80 GiB", "memory_bandwidth": "3350 GB/s",
        "kernels": {"generation": "hopper", "processors": 132, "tile_share": 0.8, "memory_share": 0.8, "launch": "3 us"},
    }  # fmt: skip
    with pytest.raises(ValueError, match="own: rates of products need kernels, clock, l2"):
        DataSheet.of(Device.model_validate(given))
    assert DataSheet.of(Device.model_validate(given | {"clock": "1.98 GHz", "l2": "50 MB"})) == FACTS
