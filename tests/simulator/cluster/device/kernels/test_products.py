from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, Speed
from scaleproof.simulator.cluster.device.kernels.passes import passes_s
from scaleproof.simulator.cluster.device.kernels.products import (
    MOST_FALL,
    NODES,
    PRODUCT_LOG_ERROR,
    CastRates,
    ProductRates,
    products_s,
)
from scaleproof.simulator.common import catalog
from scaleproof.simulator.model.operators import Matmul

FLOPS, BANDWIDTH_Bps = 100e12, 2e12
HUGE = 1e30  # a bandwidth that makes bytes free
RATES = {
    "tile_share": 0.8, "edge": 10, "ramp": 0, "memory_share": 1.0, "burst_share": 1.0, "burst": "1 s", "fixed": "2 us",
}  # fmt: skip


def table(nodes: NDArray[Any]) -> str:
    """A correction with these values at its nodes, per mille."""
    return "\n".join(" ".join(f"{int(value)}" for value in row) for row in nodes.reshape(-1, NODES))


def flat(per_mille: int) -> str:
    return table(np.full(NODES**3, per_mille))


KERNELS = {"generation": "ampere", "processors": 100, "tile_share": 1.0, "memory_share": 1.0, "launch": 0}


def speed(
    memory_Bps: float = HUGE, in_burst: bool = True, kernels: Mapping[str, object] | None = None, **rates: object
) -> Speed:
    made = ProductRates.model_validate(RATES | rates)
    return Speed(Kernels.model_validate({**KERNELS, **(kernels or {})}), FLOPS, memory_Bps, 2, products=made, burst=in_burst)


def product_s(on: Speed, m: int, n: int, k: int, batch: int = 1) -> float:
    return float(products_s(on, m, n, k, batch, 2 * batch * (m * k + k * n), 2 * batch * m * n))


@st.composite
def corrections(draw: st.DrawFn) -> str:
    """Corrections that fall by as much as they may, or rise, from node to node."""
    steps = st.integers(-MOST_FALL, 60)
    rows, columns, inner = (np.cumsum([draw(steps) for _ in range(NODES)]) for _ in range(3))
    return table(np.clip(np.add.outer(np.add.outer(rows, columns), inner), -600, 600))


@st.composite
def speeds(draw: st.DrawFn) -> Speed:
    return speed(
        draw(st.sampled_from([BANDWIDTH_Bps, HUGE])),
        draw(st.booleans()),
        {"generation": draw(st.sampled_from(["ampere", "blackwell"])), "sustained_share": draw(st.floats(0.3, 1))},
        edge=draw(st.floats(0, 100)),
        ramp=draw(st.floats(0, 1000)),
        memory_share=draw(st.floats(0.3, 1)),
        burst_share=draw(st.floats(0.3, 1)),
        burst=f"{draw(st.sampled_from([0.0, 1e-5, 1e-3]))} s",
        correction=draw(st.just("") | corrections()),
    )


SIDES = st.integers(1, 4096).map(lambda eighths: 8 * eighths)


@given(speeds(), SIDES, SIDES, SIDES, st.integers(1, 8))
def test_time_never_falls_where_a_dimension_doubles(on: Speed, m: int, n: int, k: int, batch: int) -> None:
    once_s = product_s(on, m, n, k, batch)
    for larger in ((2 * m, n, k, batch), (m, 2 * n, k, batch), (m, n, 2 * k, batch), (m, n, k, 2 * batch)):
        assert product_s(on, *larger) >= once_s * (1 - 1e-9), larger


@given(speeds(), SIDES, SIDES, SIDES)
def test_no_product_is_faster_than_the_peak_or_than_its_bytes(on: Speed, m: int, n: int, k: int) -> None:
    assert on.products is not None
    moved_s = 2 * (m * k + k * n + m * n) / (on.memory_Bps * on.products.memory_share)
    assert product_s(on, m, n, k) >= max(2 * m * n * k / FLOPS, moved_s) * (1 - 1e-9)


def test_long_products_reach_the_share_that_tiles_and_power_leave() -> None:
    """The norm of two bounds lies a little above the tighter one."""
    m, n, k = 256 * 100, 128 * 100, 65536
    assert product_s(speed(), m, n, k) == pytest.approx(2 * m * n * k / (0.8 * FLOPS), rel=0.02)
    limited = speed(burst_share=0.5, burst="0 us")
    assert product_s(limited, m, n, k) == pytest.approx(2 * m * n * k / (0.5 * FLOPS), rel=0.02)


def test_a_wave_that_leaves_processors_idle_takes_nearly_as_long_as_a_full_one() -> None:
    """One tile more than a wave takes most of another wave; fewer tiles are faster by an eighth root."""
    on = speed(fixed=0, edge=1000)  # no tiles but the largest pay, and no splits of 64 inner elements
    quarter, wave, more, two = (product_s(on, 256 * tiles, 128, 64) for tiles in (25, 100, 101, 200))
    assert two == pytest.approx(2 * wave)
    assert quarter == pytest.approx(wave / 4**0.125)
    assert more == pytest.approx(2 * wave * (101 / 200) ** 0.125)


def test_starting_a_wave_takes_the_time_of_inner_elements() -> None:
    plain, ramped = (speed(fixed=0, edge=1000, ramp=ramp) for ramp in (0, 512))
    assert product_s(ramped, 25600, 128, 512) == pytest.approx(product_s(plain, 25600, 128, 1024))


def test_fixed_time_is_that_of_graphs_in_bursts_and_the_devices_launch_in_training() -> None:
    burst, trained = (speed(in_burst=burst, kernels={"launch": "5 us"}) for burst in (True, False))
    assert product_s(trained, 8, 8, 8) - product_s(burst, 8, 8, 8) == pytest.approx(3e-6)


def test_training_is_bound_by_what_the_power_limit_sustains() -> None:
    side, kernels = 8192, {"sustained_share": 0.4}
    burst, trained = (product_s(speed(in_burst=burst, kernels=kernels), side, side, side) for burst in (True, False))
    assert trained == pytest.approx(2 * side**3 / (0.4 * FLOPS), rel=0.02)
    assert burst < 0.6 * trained


def test_a_burst_bounds_what_training_sustains() -> None:
    side = 16384
    assert product_s(speed(in_burst=False, burst_share=0.4), side, side, side) > 0.99 * 2 * side**3 / (0.4 * FLOPS)


def test_a_correction_scales_the_time_of_tiles() -> None:
    plain, slower = (product_s(speed(fixed=0, correction=text), 4096, 4096, 4096) for text in ("", flat(100)))
    assert slower == pytest.approx(math.exp(0.1) * plain)


def test_a_correction_is_multilinear_in_logarithms_and_constant_outside() -> None:
    nodes: NDArray[np.float64] = np.zeros((NODES, NODES, NODES))
    nodes[1, 1, 1] = 80  # at 2048 × 2048 × 2048
    rates = ProductRates.model_validate(RATES | {"correction": table(nodes)})
    m = np.array([2048.0, 4096, 4096, 8192, 128, 10**9])
    n = np.array([2048.0, 2048, 4096, 2048, 128, 10**9])
    expected = [0.08, 0.04, 0.02, 0, 0, 0]
    assert np.log(rates.slowdown(m, n, np.full(6, 2048.0))) == pytest.approx(expected)
    low: NDArray[np.float64] = np.zeros((NODES, NODES, NODES))
    low[0, 0, 0] = 50
    assert ProductRates.model_validate(RATES | {"correction": table(low)}).slowdown(8.0, 8.0, 8.0) == pytest.approx(
        math.exp(0.05)
    )


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        ("1 2 3", "not 16 lines of 4 numbers"),
        (flat(0).replace("0", "x", 1), "whole numbers per mille"),
        (flat(601), "beyond ±600 per mille"),
        (table(np.arange(NODES**3)[::-1] * 8.0), "falls by more than 100 per mille"),
    ],
)
def test_wrong_corrections_are_refused(correction: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProductRates.model_validate(RATES | {"correction": correction})


def test_16_bits_share_their_rates_and_others_have_their_own() -> None:
    one = Kernels.model_validate(KERNELS | {"products": {"bf16": RATES, "fp8": RATES | {"edge": 5}}})
    assert one.product_rates("fp16") is one.product_rates("bf16") is not None
    assert one.product_rates("fp8") != one.product_rates("bf16")
    assert one.product_rates("fp32") is None


def test_a_device_without_rates_has_those_of_its_generation_relative_to_its_tiles() -> None:
    shipped = catalog.ROOT / "devices" / "h100-80gb-sxm.yaml"
    h100 = Kernels.model_validate(yaml.safe_load(shipped.read_text(encoding="utf-8"))["kernels"])
    own, measured = h100.model_copy(update={"products": {}}), h100.product_rates("bf16")
    assert measured is not None
    assert measured.state == "measured"
    same, slower = own.product_rates("fp16"), own.model_copy(update={"tile_share": h100.tile_share / 2}).product_rates("bf16")
    assert same is not None
    assert slower is not None
    assert same == measured.model_copy(update={"state": "data sheet", "log_error": PRODUCT_LOG_ERROR})
    assert slower.tile_share == pytest.approx(measured.tile_share / 2)
    for other in ({"generation": "volta"}, {"generation": "tpu"}):
        assert own.model_copy(update=other).product_rates("bf16") is None


def test_vectorised_product_times_equal_separate_ones() -> None:
    rng = np.random.default_rng(0)
    on = speed(BANDWIDTH_Bps, correction=table(rng.integers(-40, 50, NODES**3).astype(np.float64)))
    m, n, k = np.array([[64, 64, 64], [4096, 4096, 4096], [100, 20_000, 16], [16, 16, 100_000]], dtype=np.float64).T
    together_s = products_s(on, m, n, k, np.ones(4), 2 * (m * k + k * n), 2 * m * n)
    assert together_s == pytest.approx([product_s(on, *map(int, size)) for size in zip(m, n, k, strict=True)])


@given(st.integers(1, 512), st.integers(1, 16))
def test_a_grouped_product_with_equal_loads_takes_the_usual_time(eighths: int, count: int) -> None:
    on, rows = speed(BANDWIDTH_Bps, correction=flat(50)), 8 * eighths
    for loads in ((), (1.0,) * count):
        operator = Matmul("expert up", rows, 2048, 1024, count, loads=loads)
        times_s = passes_s(on, (operator,), (), 1)
        assert times_s == pytest.approx(passes_s(on, (Matmul("expert up", rows, 2048, 1024, count),), (), 1))


def test_casts_of_inputs_in_the_cache_are_faster() -> None:
    cast = CastRates.model_validate({"fixed": "10 us", "memory_share": 0.5, "cached_gain": 4, "cache": "48 MB"})
    small, large = cast.seconds(1e12, np.array([8e6, 80e6])) - 10e-6
    assert large == pytest.approx(80e6 * 5 / 0.5e12)
    assert small == pytest.approx(large / 10 / 4)
