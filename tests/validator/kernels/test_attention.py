"""Fits of attention to tables: recovery of known rates, and errors on shapes and on GPUs that were left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.attention import (
    AttentionRates,
    Preparation,
    flash_s,
    generation_attention_rates,
)
from scaleproof.simulator.model.operators import Attention
from scaleproof.validator.kernels.attention import (
    AttentionShapes,
    MeasuredAttention,
    fit_attention,
    fit_general,
    log_errors,
    predicted_s,
)
from scaleproof.validator.kernels.devices import device_of
from scaleproof.validator.kernels.fit import cross_validated
from scaleproof.validator.kernels.table import ATTENTION
from tests.validator.kernels.made import all_shipped

GPUS = ("A100-80GB-SXM", "H100-80GB-SXM", "B200-SXM", "L40S-48GB")
TRUE = AttentionRates(
    product_share=0.6, exponential_share=0.7, sustained_share=0.7, block_s="4 us", launch_s="9 us",  # type: ignore[arg-type]
    slowdowns={256: 1.2}, preparation=Preparation(memory_share=0.8),
)  # fmt: skip


def shipped_device(gpu: str) -> Device:
    found = device_of(gpu)
    assert found is not None
    return found


def measured(gpu: str) -> MeasuredAttention:
    """The passes of a GPU in the table that ships."""
    device = shipped_device(gpu)
    assert device.kernels is not None
    shapes = all_shipped().of_gpu(gpu).attentions("bf16")
    return MeasuredAttention(device.speed("bf16", device.kernels, burst=True), shapes, device.l2_bytes)


def drawn(
    count: int, noise: float, backward: int = 0, rates: AttentionRates = TRUE, implementation: str = "trtllm"
) -> MeasuredAttention:
    """Passes on an H100 that runs with known rates. backward: number of backward passes, which come first."""
    random = np.random.default_rng(1)
    heads, lengths, widths = (random.choice(values, count) for values in ([4, 16, 64], [1024, 4096, 16384], [64, 128, 256]))
    batch = random.choice([1, 2, 8], count)
    columns = [column.astype(float) for column in (batch, lengths, heads, heads, widths)]
    shapes = AttentionShapes(*columns, backward=np.arange(count) < backward, measured_s=np.ones(count))
    one = measured("H100-80GB-SXM")._replace(shapes=shapes, implementation=implementation)
    times_s = np.exp(-log_errors(rates, one) + noise * random.standard_normal(count))
    return one._replace(shapes=replace(shapes, measured_s=times_s))


def test_a_fit_recovers_the_rates_that_made_the_times() -> None:
    rates = fit_attention(drawn(300, 0.0))
    assert rates.product_share == pytest.approx(TRUE.product_share, rel=0.05)
    assert rates.exponential_share == pytest.approx(TRUE.exponential_share, rel=0.05)
    assert rates.block_s == pytest.approx(TRUE.block_s, rel=0.1)
    assert rates.slowdowns[256] == pytest.approx(1.2, rel=0.05)
    assert np.abs(log_errors(rates, drawn(300, 0.0))).max() < 0.01


def test_a_fit_recovers_the_rates_of_backward_passes() -> None:
    """None of them is near what the forward pass implies; a table of forward passes alone implies as much as before."""
    backward = {"backward_product_share": 0.4, "backward_exponential_share": 0.15, "backward_moved": 20.0}
    true = TRUE.model_copy(update={"preparation": None, **backward})
    rates = fit_attention(drawn(400, 0.0, 200, true, "flash-2"))
    assert rates.product_share == pytest.approx(true.product_share, rel=0.05)
    assert rates.backward_product_share == pytest.approx(0.4, rel=0.03)
    assert rates.backward_exponential_share == pytest.approx(0.15, rel=0.03)
    assert rates.backward_moved == pytest.approx(20.0, rel=0.05)
    noisy, exact = fit_attention(drawn(60, 0.03, 30, true, "flash-2")), drawn(400, 0.0, 400, true, "flash-2")
    assert np.median(np.abs(log_errors(noisy, exact))) < 0.05
    known = generation_attention_rates("flash-2", "hopper")
    forward = fit_attention(drawn(200, 0.0, 0, true, "flash-2"))
    assert known is not None
    assert known.backward_product_share is not None
    implied = forward.product_share * known.backward_product_share / known.product_share
    assert forward.backward_product_share == pytest.approx(implied, rel=1e-3)
    assert forward.backward_moved == known.backward_moved


@pytest.mark.parametrize("gpu", ["H100-80GB-SXM", "RTX-PRO-6000-96GB-PCIe", "V100-16GB-SXM2"])
def test_passes_take_as_long_as_in_training(gpu: str) -> None:
    """Rows of a table are predicted by the kernel that a layer runs, with rates of an implementation and without."""
    device = shipped_device(gpu)
    assert device.kernels is not None
    columns = [np.array([value, value], dtype=float) for value in (4, 4096, 32, 8, 128)]
    shapes = AttentionShapes(*columns, backward=np.array([False, True]), measured_s=np.ones(2))
    operator = Attention("", 32, 8, 4096, 4096, 128, 128, flash=True)
    precision: Precision = "fp16" if gpu.startswith("V100") else "bf16"
    rates, kernels = device.kernels.attention_rates("flash-2"), device.kernels
    if rates is not None:
        kernels = kernels.model_copy(update={"attention": {"flash-2": rates}, "flash_forward_share": None})
    speed = device.speed(precision, kernels, burst=True)
    expected = [flash_s(operator, 4, speed, backward=backward) for backward in (False, True)]
    assert predicted_s(device, precision, shapes, "flash-2") == pytest.approx(expected)
    assert expected[1] > 1.5 * expected[0]


def test_errors_of_left_out_shapes_are_those_of_the_times() -> None:
    every = drawn(400, 0.1)
    half = np.arange(400) % 2 == 0
    fitted, left_out = (every._replace(shapes=every.shapes.subset(mask)) for mask in (half, ~half))
    ends = np.quantile(log_errors(fit_attention(fitted), left_out), (0.05, 0.95))
    assert ends == pytest.approx((-0.164, 0.164), abs=0.04)


@pytest.mark.parametrize("gpu", GPUS)
def test_shipped_rates_predict_the_table(gpu: str) -> None:
    device, one = shipped_device(gpu), measured(gpu)
    errors = np.abs(predicted_s(device, "bf16", one.shapes) / one.shapes.measured_s - 1)
    assert np.median(errors) < 0.05


@pytest.mark.full
@pytest.mark.parametrize("gpu", GPUS[1::2])
def test_left_out_shapes(gpu: str) -> None:
    rows = all_shipped().of_gpu(gpu)
    found = cross_validated(shipped_device(gpu), ATTENTION, "bf16", rows.subset(rows.rows(ATTENTION, "bf16")))
    assert found.median < 0.05
    assert found.p95 < 0.2
    assert 0.85 < found.coverage < 0.95


@pytest.mark.full
def test_left_out_gpus() -> None:
    inside = []
    for gpu in GPUS:
        one, others = measured(gpu), [measured(other) for other in GPUS if other != gpu]
        rates = fit_general(others, one.speed.kernels.generation, one.cache_bytes)
        errors = log_errors(rates, one)
        assert np.median(np.abs(np.expm1(-errors))) < 0.15, gpu
        inside.append((errors >= rates.log_error[0]) & (errors <= rates.log_error[1]))
    assert 0.8 < np.concatenate(inside).mean() < 0.97
