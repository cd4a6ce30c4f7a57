"""Devices that are fitted to tables of kernels: errors on left-out shapes, notes, and the file that is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.kernels import device_file
from scaleproof.validator.kernels.devices import device_of
from scaleproof.validator.kernels.fit import cross_validated, fit_device, halves, interval, kinds, left_out
from scaleproof.validator.kernels.rates import LogError, interval_s, log_error, predicted_s
from scaleproof.validator.kernels.table import _COLUMNS_OF_ROWS, KernelTable, read
from tests.validator.kernels.made import GEMM, sampled, written

GPU = "A100-80GB-SXM"


def nominal(name: str = GPU) -> Device:
    device = device_of(name)
    assert device is not None
    return device


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> KernelTable:
    return read(sampled(tmp_path_factory.mktemp("tables") / "a100.csv", GPU, 100))


def test_halves_are_equal_in_number_and_do_not_depend_on_the_order(table: KernelTable) -> None:
    half, texts = halves(table), np.array(table.shape_texts())
    assert half.sum() == -(-len(table) // 2)
    turned = replace(
        table,
        kind=table.kind[::-1],
        routing=table.routing[::-1],
        implementation=table.implementation[::-1],
        direction=table.direction[::-1],
        sizes={name: size[::-1] for name, size in table.sizes.items()},
    )
    assert set(np.array(turned.shape_texts())[halves(turned)]) == set(texts[half])


@pytest.mark.full
def test_the_fit_is_scored_on_shapes_that_it_has_not_seen(table: KernelTable) -> None:
    kind, precision, rows = next(kinds(table))
    fit = cross_validated(nominal(), kind, precision, rows)
    residuals = left_out(nominal(), kind, precision, rows)
    assert (fit.kind, fit.precision, fit.rows) == ("gemm", "bf16", 100)
    assert fit.median == pytest.approx(np.median(np.abs(np.expm1(-residuals))))
    assert fit.median < 0.1
    assert fit.error == interval(residuals)
    assert 0.7 < fit.coverage <= 1


def test_intervals_are_percentiles_of_logarithms() -> None:
    error = interval(np.linspace(-1, 1, 201))
    assert error == pytest.approx((-0.9, 0.9))
    assert LogError(0.0, np.log(2)).shares == pytest.approx((0, 1))


def test_a_fitted_device_is_nearer_to_the_table_than_the_shipped_curve(table: KernelTable, tmp_path: Path) -> None:
    fitted = fit_device(nominal(), table)
    assert [(fit.kind, fit.precision) for fit in fitted.fits][:2] == [("gemm", "bf16"), ("attention_forward", "bf16")]
    for fit in fitted.fits[:2]:
        assert fit.implementation in ("", "trtllm")
        rows = table.subset(table.rows(fit.kind, fit.precision))
        error = np.abs(np.log(rows.measured_s / predicted_s(fitted.device, fit.kind, fit.precision, rows)))
        assert np.median(error) < 0.08
        assert log_error(fitted.device, fit.kind, fit.precision) == pytest.approx(fit.error, abs=1e-3)
        low_s, high_s = interval_s(fitted.device, fit.kind, fit.precision, rows.measured_s)
        assert np.log(high_s / low_s) == pytest.approx(fit.error.high - fit.error.low, abs=1e-3)
    path = tmp_path / "device.yaml"
    device_file.write(fitted, "mine", table.path, path)
    written_device = load_device(path)
    assert written_device.kernels == fitted.device.kernels
    assert (written_device.name, written_device.state_of("kernels.products")) == ("mine", "measured")
    assert "gemm bf16: 100 shapes" in written_device.source


def test_attention_is_stored_by_its_implementation(table: KernelTable) -> None:
    """Each implementation has a fit of its own, and the rates that a framework runs that names it."""
    attentions = table.subset(table.rows("attention_forward"))
    names = np.where(np.arange(len(attentions)) % 2, "cudnn", "flash-2")
    slower = np.where(names == "flash-2", 1.6, 1.0)
    fitted = fit_device(nominal(), replace(attentions, implementation=names, measured_s=attentions.measured_s * slower))
    assert [fit.name for fit in fitted.fits] == ["attention_forward bf16 flash-2", "attention_forward bf16 cudnn"]
    kernels = fitted.device.kernels
    assert kernels is not None
    flash, cudnn = (kernels.attention[name] for name in ("flash-2", "cudnn"))
    assert flash.preparation is None, "only serving software copies keys and values before"
    assert flash.product_share < cudnn.product_share
    assert kernels.attention_rates("flash-2") == flash
    known = nominal().kernels
    assert known is not None
    usual = known.attention_rates("flash-2")
    assert usual is not None
    assert usual.backward_product_share is not None
    assert flash.backward_product_share == pytest.approx(
        flash.product_share * usual.backward_product_share / usual.product_share, rel=1e-3
    )
    bound = kernels.attention_rates("best")
    assert bound is not None
    assert bound.product_share >= max(flash.product_share, cudnn.product_share)


def test_backward_passes_are_fitted_next_to_the_forward_passes_of_their_implementation(table: KernelTable) -> None:
    """Backward passes twice as slow as known ones have errors like the others; alone they are not fitted."""
    forward = table.subset(table.rows("attention_forward"))
    forward = replace(forward, implementation=np.full(len(forward), "flash-2"))
    backward = replace(forward, direction=np.full(len(forward), "backward"))
    slower_s = 2.0 * predicted_s(nominal(), "attention_forward", "bf16", backward)
    backward = replace(backward, measured_s=slower_s)
    rows = joined(forward, backward)
    half = halves(rows)
    assert half[: len(forward)].sum() == half[len(forward) :].sum() == len(forward) / 2
    [fit] = (fitted := fit_device(nominal(), rows)).fits
    assert (fit.rows, fit.p95 < 0.3) == (len(rows), True)
    assert predicted_s(fitted.device, fit.kind, "bf16", backward) == pytest.approx(slower_s, rel=0.2)
    with pytest.raises(InputError, match="flash-2: not fitted, since 0 shapes are fewer than 8"):
        fit_device(nominal(), backward)


def joined(first: KernelTable, second: KernelTable) -> KernelTable:
    columns = {name: np.concatenate([getattr(one, name) for one in (first, second)]) for name in _COLUMNS_OF_ROWS}
    sizes = {name: np.concatenate([size, second.sizes[name]]) for name, size in first.sizes.items()}
    return replace(first, **columns, sizes=sizes)


def test_what_is_not_fitted_is_noted(tmp_path: Path) -> None:
    many = [GEMM | {"gpu": GPU, "m": str(512 * number), "latency_us": f"{70.5 * number}"} for number in range(1, 21)]
    few = [GEMM | {"gpu": GPU, "precision": "fp8", "k": str(64 * number)} for number in range(1, 4)]
    double = [GEMM | {"gpu": GPU, "precision": "fp64", "latency_us": "9e4"}] * 2
    fitted = fit_device(nominal(), read(written(tmp_path / "t.csv", *many, *few, *double)))
    assert [(fit.kind, fit.precision, fit.rows) for fit in fitted.fits] == [("gemm", "bf16", 20)]
    assert fitted.notes == (
        "1 row repeats a shape; each shape counts once, with the median of its times",
        "gemm fp64: not fitted, since fp64 has no rates of its own",
        "gemm fp8: not fitted, since A100-80GB-SXM has no peak rate in fp8",
    )


def test_a_table_of_few_shapes_is_refused(tmp_path: Path) -> None:
    table = read(written(tmp_path / "t.csv", GEMM | {"gpu": GPU}))
    with pytest.raises(InputError, match=r"t.csv: no kind of kernel could be fitted; give more shapes\ngemm bf16: not fitted"):
        fit_device(nominal(), table)
