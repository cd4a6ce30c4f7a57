"""Axes of studies: fields of the schema, lists, names, ranges, and columns of tables."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.common.errors import FieldError


@pytest.mark.parametrize(
    ("field", "given", "column", "result"),
    [
        ("cluster.network.bandwidth", ["1 Gbit/s", "2 GB/s"], "cluster.network.bandwidth_Bps", (1.25e8, 2e9)),
        ("cluster.network.latency", ["3 us", "5 bananas"], "cluster.network.latency_s", (3e-6, None)),
        ("cluster.device.peak.fp32", ["3 TFLOP/s"], "cluster.device.peak_flops.fp32", (3e12,)),
        ("strategy.workers", [1, 2], "strategy.workers", (1, 2)),
        ("strategy.overlap", [True, False], "strategy.overlap", (True, False)),
        ("strategy.microbatches", [4], "strategy.microbatches", (4,)),
        ("training.optimizer", ["sgd", "adam"], "training.optimizer", ("sgd", "adam")),
        ("cluster", ["dgx1", "dgx-h100"], "cluster", ("dgx1", "dgx-h100")),
        ("strategy", {"ring": {"kind": "data_parallel"}, "cut": "pipeline"}, "strategy", ("ring", "cut")),
        ("batch", [{"total": 8}, 16], "batch", ("{total: 8}", "16")),
        ("cluster.network.nics", ["8 x 400 Gbit/s"], "cluster.network.nics_Bps", (4e11,)),
        ("tp", [1, 2], "strategy.tensor", (1, 2)),
        ("gbs", [64], "batch.total", (64,)),
    ],
)
def test_columns_name_units_and_values_use_them(field: str, given: Any, column: str, result: tuple[Any, ...]) -> None:
    axis = StudyAxis.of(field, given)
    assert axis.column == column
    assert (
        axis.table_values == pytest.approx(result)
        if isinstance(result[0], float) and None not in result
        else axis.table_values == result
    )
    assert len(axis.overrides()) == len(given)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 1, "to": 64, "factor": 4}, (1, 4, 16, 64)),
        ({"from": 64, "to": 1, "factor": 8}, (64, 8, 1)),
        ({"from": 2, "to": 8, "points": 3}, (2, 5, 8)),
        ({"from": 1, "to": 4, "points": 20}, (1, 2, 3, 4)),
        ({"from": 1, "to": 100, "points": 3, "log": True}, (1, 10, 100)),
    ],
)
def test_ranges_of_integers_contain_integers(given: dict[str, Any], values: tuple[int, ...]) -> None:
    assert StudyAxis.of("strategy.workers", given).values == values


def test_ranges_of_real_numbers_are_not_rounded() -> None:
    assert StudyAxis.of("cluster.node.cores", {"from": 1, "to": 2, "points": 3}).values == (1, 1.5, 2)


@given(st.integers(2, 40), st.floats(0.1, 10), st.floats(1.5, 1000), st.booleans())
def test_ranges_have_even_steps_between_both_ends(points: int, first: float, times: float, log: bool) -> None:
    last = first * times
    given = {"from": f"{first!r} Mbit/s", "to": f"{last / 1000!r} Gbit/s", "points": points, "log": log}
    result = StudyAxis.of("cluster.network.bandwidth", given).table_values
    assert (result[0], result[-1]) == pytest.approx((first * 125e3, last * 125e3), rel=1e-5)
    if log:
        ratio = (last / first) ** (1 / (points - 1))
        assert all(b / a == pytest.approx(ratio, rel=1e-4) for a, b in itertools.pairwise(result))
    else:
        step = (last - first) / (points - 1) * 125e3
        assert all(b - a == pytest.approx(step, abs=1e-5 * result[-1]) for a, b in itertools.pairwise(result))


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("cluster.netwrk.bandwidth", [1], "cluster has no field 'netwrk'; did you mean 'network'?"),
        ("strategy.wrkers", [1], "did you mean 'workers'?"),
        ("nothing", [1], "a scenario has no field 'nothing'"),
        ("strategy.workers.more", [1], "strategy.workers has no field 'more'; known there: nothing"),
        ("strategy.workers", [], "no values; give at least one"),
        ("strategy.workers", {}, "no values"),
        ("strategy.workers", 3, "expected a list"),
        ("strategy.workers", {"from": 1, "to": 2}, "either points or factor"),
        ("strategy.workers", {"from": 1, "to": 2, "points": 3, "factor": 2}, "either points or factor"),
        ("strategy.workers", {"from": 1, "to": 2, "point": 3}, "a range has no 'point'"),
        ("strategy.workers", {"from": 1, "to": 2, "points": 0}, "at least 1"),
        ("strategy.workers", {"from": 0, "to": 2, "factor": 2}, "above zero"),
        ("strategy.workers", {"from": 1, "to": 2, "factor": 1}, "above 1"),
        ("strategy.workers", {"from": 1, "to": 2, "factor": 1.0000001}, "at most"),
        ("strategy.workers", {"from": 1, "to": 2, "factor": 2, "log": False}, "leave log out"),
        ("strategy.workers", {"from": 1, "to": 2, "points": 2, "log": "yes"}, "true or false"),
        ("strategy.workers", {"from": "one", "to": 2, "points": 2}, "'one' is not a number"),
        ("cluster.network.latency", {"from": "1 us", "to": "2 Gbit/s", "points": 2}, "give both in the same unit"),
    ],
)
def test_invalid_axes_are_rejected_with_their_field(field: str, given: Any, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        StudyAxis.of(field, given)
    assert message in str(caught.value)
    assert caught.value.field == ("axes", field)
    assert len(str(caught.value).splitlines()) == 1
