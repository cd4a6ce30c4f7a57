"""Mixtures of experts in tables: loads by routing, the model of their time, and errors on left-out shapes."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.validator.kernels.devices import device_of
from scaleproof.validator.kernels.fit import cross_validated
from scaleproof.validator.kernels.mixture import MixtureShapes, expert_groups, predicted_s
from scaleproof.validator.kernels.table import MIXTURE
from tests.validator.kernels.made import all_shipped

GPUS = ("A100-80GB-SXM", "H100-80GB-SXM", "B200-SXM", "L40S-48GB")


def shipped_device(gpu: str) -> Device:
    found = device_of(gpu)
    assert found is not None
    return found


def seconds(**changes: float | str) -> float:
    """Seconds of a mixture on an H100."""
    sizes = {"tokens": 4096, "hidden": 4096, "inter": 2048, "experts": 64, "topk": 4, "moe_tp": 1, "moe_ep": 1} | changes
    routing = str(sizes.pop("routing", "balanced"))
    columns = {name: np.array([float(value)]) for name, value in sizes.items()}
    shapes = MixtureShapes(**columns, routing=np.array([routing]), measured_s=np.ones(1))
    return float(predicted_s(shipped_device("H100-80GB-SXM"), "bf16", shapes)[0])


def test_balanced_experts_share_the_copies_of_tokens() -> None:
    rows, counts = expert_groups("balanced", 1024, 64, 4, 8)
    assert rows.tolist() == [64]
    assert counts.tolist() == [8]


@pytest.mark.parametrize("ranks", [1, 4, 16, 64])
def test_the_most_loaded_rank_has_at_least_an_even_share_of_a_power_law(ranks: int) -> None:
    rows, counts = expert_groups("power_law_1.2", 4096, 64, 4, ranks)
    load = (rows * counts).sum()
    assert counts.sum() == 64 / ranks
    assert rows.tolist() == sorted(rows.tolist(), reverse=True)
    assert rows.max() <= 4096
    even = 4096 * 4 / ranks
    assert load >= even * (1 - 1e-9)
    assert load == pytest.approx(even) if ranks == 1 else load > 1.2 * even


def test_mixtures_take_longer_with_more_of_anything() -> None:
    usual = seconds()
    for change in ({"tokens": 16384}, {"hidden": 8192}, {"inter": 8192}, {"topk": 8}):
        assert seconds(**change) > 1.2 * usual, change
    assert seconds(moe_ep=8) < 0.4 * usual
    assert seconds(moe_tp=8) < 0.5 * usual
    assert seconds(moe_ep=8, routing="power_law_1.2") > 1.2 * seconds(moe_ep=8)


@pytest.mark.full
@pytest.mark.parametrize("gpu", GPUS[1::2])
def test_left_out_shapes(gpu: str) -> None:
    table = all_shipped().of_gpu(gpu)
    for precision in table.precisions(MIXTURE):
        found = cross_validated(shipped_device(gpu), MIXTURE, precision, table.subset(table.rows(MIXTURE, precision)))
        assert found.median < 0.12, precision
        assert 0.8 < found.coverage < 0.97, precision
