"""Matrix products are timed in bursts and over seconds, with factors that no cache keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scaleproof.validator.probe import products
from scaleproof.validator.probe.points import Point
from tests.validator.probe.onranks import least_s, probed


@pytest.fixture
def here(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process the only rank, which collects its own points."""
    monkeypatch.setattr(products, "collected", lambda points: [point.plain() for point in points])


def test_products_are_timed_by_shape_and_precision() -> None:
    points = probed(products.products, 1, [(16, 16, 16), (512, 256, 512)], ["fp32", "bf16"], 1.0)
    expected = [f"{precision} {shape}" for precision in ("fp32", "bf16") for shape in ("16x16x16", "512x256x512")]
    assert [point.what for point in points] == expected
    assert [point.size for point in points] == 2 * [2.0 * 16**3, 2.0 * 512 * 256 * 512]
    assert points[1].numbers == {"m": 512, "n": 256, "k": 512}
    assert least_s(points, expected[1], points[1].size) > least_s(points, expected[0], points[0].size)


@pytest.mark.parametrize(("cache_bytes", "pairs"), [(0, 1), (2**20, 1 + 2**20 // (2 * 4 * 64**2)), (2**40, 256)])
def test_factors_do_not_stay_in_the_cache(cache_bytes: int, pairs: int, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pairs alternate as exceed the cache between two uses of one."""
    used: list[tuple[int, int]] = []
    monkeypatch.setattr(products, "_cache_bytes", lambda _: cache_bytes)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: used.append((a.data_ptr(), b.data_ptr())))
    multiply = products._product("fp32", 64, 64, 64)
    for _ in range(2 * pairs):
        multiply()
    assert len(set(used)) == pairs
    assert used[:pairs] == used[pairs:]


def test_the_cache_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"L2_cache_size": 50 * 2**20}))
    assert products._cache_bytes(torch.device("cuda")) == 50 * 2**20
    assert products._cache_bytes(torch.device("cpu")) == 0


def test_products_in_8_bits_cast_their_first_factor(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    scaled = torch._scaled_mm

    def recorded(left: torch.Tensor, right: torch.Tensor, *scales: torch.Tensor, **options: Any) -> torch.Tensor:
        given.append((left.dtype, left.shape, right.dtype, right.shape, options["out_dtype"]))
        return scaled(left, right, *scales, **options)

    monkeypatch.setattr(products, "_has_fp8", lambda _: True)
    monkeypatch.setattr(torch, "_scaled_mm", recorded)
    points = [Point.of(plain) for plain in products.products([(32, 16, 64)], ["fp8", "bf16"], 0.05)]
    assert [(point.what, point.size) for point in points] == [
        (f"{name} 32x16x64", 2.0 * 32 * 16 * 64) for name in ("fp8", "bf16")
    ]
    narrow = torch.float8_e4m3fn
    assert set(given) == {(narrow, (32, 64), narrow, (64, 16), torch.bfloat16)}


def test_a_precision_that_the_device_lacks_is_skipped_with_the_reason(here: None) -> None:
    for probe in (
        lambda: products.products([(16, 16, 16)], ["fp32", "fp8"], 0.01),
        lambda: products.sustained(16, ["fp8"], 0.01),
    ):
        *_, skipped = map(Point.of, probe())
        assert (skipped.what, skipped.seconds) == ("products in fp8", ())
        assert skipped.stopped == "skipped: needs an NVIDIA GPU of compute capability 8.9 or newer"


@pytest.mark.parametrize(
    ("capability", "hip", "has"), [((8, 9), None, True), ((9, 0), None, True), ((8, 6), None, False), ((9, 4), "6.2", False)]
)
def test_8_bits_need_an_ada_or_newer(
    capability: tuple[int, int], hip: str | None, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert products._has_fp8(torch.device("cuda")) == has


def test_sustained_products_have_the_state_of_the_gpu_at_both_ends(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([{"clock_MHz": 1980.0}, {"clock_MHz": 1410.0, "power_W": 699.0}])
    monkeypatch.setattr(products, "_load", lambda: lambda: next(states))
    [point] = map(Point.of, products.sustained(64, ["bf16"], 0.5))
    assert (point.probe, point.what, point.group, point.size) == ("matmul", "sustained bf16 64x64x64", "sustained", 2.0 * 64**3)
    assert len(point.seconds) > 1
    shape = {"m": 64, "n": 64, "k": 64}
    assert point.numbers == shape | {"begin_clock_MHz": 1980, "clock_MHz": 1410, "power_W": 699}


def test_a_cpu_has_no_state(here: None) -> None:
    points = [Point.of(plain) for plain in products.sustained(16, ["fp32", "bf16"], 0.05)]
    assert [point.numbers for point in points] == [{"m": 16, "n": 16, "k": 16}] * 2


@pytest.mark.parametrize(("setting", "timed"), [("0", 0), ("1", 1)])
def test_amds_gpus_have_tf32_where_a_setting_allows_it(
    setting: str, timed: int, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setenv("HIPBLASLT_ALLOW_TF32", setting)
    (point,) = (Point.of(plain) for plain in products.products([(16, 16, 16)], ["tf32"], 0.01))
    assert (len(point.seconds) > 0) == timed
    assert timed or "set HIPBLASLT_ALLOW_TF32=1" in point.stopped
