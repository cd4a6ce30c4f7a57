"""Fits of the model error cover errors of a known distribution, also of sources that they were not fitted to."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from scaleproof.proof.published.error_fit import (
    FEWEST_SOURCES,
    FLOOR,
    Ends,
    ErrorRow,
    coverage,
    fit,
    interval,
    left_out,
    student_factor,
)
from scaleproof.simulator.uncertainty.error_model import ALL


def drawn(
    sources: int, rows: int, seed: int, between: float = 0.05, shift: float = 0.0, deviation: float = 0.0
) -> list[ErrorRow]:
    """Rows whose errors grow with a covariate from 0 to 1 by a factor of e, and have a part in common by source."""
    random = np.random.default_rng(seed)
    found = []
    for source in range(sources):
        common = random.normal(0.0, between)
        for place in random.uniform(0, 1, rows).tolist():
            error = shift + common + random.normal(0.0, 0.05) * math.exp(place) + random.normal(0.0, deviation or 1e-12)
            found.append(ErrorRow(f"source {source}", ALL, error, deviation, {"place": place}))
    return found


@pytest.mark.parametrize(("shift", "deviation"), [(0.0, 0.1), (0.1, 0.0)])
def test_intervals_cover_nine_in_ten_rows_of_new_sources(shift: float, deviation: float) -> None:
    fitted = fit(drawn(20, 60, 0, shift=shift, deviation=deviation), ["place"])
    found = coverage(drawn(200, 20, 1, shift=shift, deviation=deviation), {}, fitted)
    assert 0.86 <= found.of_rows <= 0.95
    if shift:
        below, above = fitted.ends[ALL]
        assert above > below, "measured times are longer than predicted ones"


def test_coverage_holds_with_each_source_left_out() -> None:
    rows = drawn(12, 50, 2)
    fits = dict(left_out(rows, ["place"]))
    assert len(fits) == 12
    found = coverage(rows, fits, fit(rows, ["place"]))
    assert 0.85 <= found.of_rows <= 0.97
    assert found.of_sources == pytest.approx(found.of_rows), "all sources have the same number of rows"


def test_the_width_grows_with_the_covariate_as_the_errors_do() -> None:
    fitted = fit(drawn(20, 100, 3, between=0.0), ["place"])
    assert fitted.covariates["place"].slope == pytest.approx(1.0, abs=0.25)


def test_errors_that_shrink_with_a_covariate_do_not_narrow_intervals() -> None:
    rows = [row._replace(covariates={"place": 1 - row.covariates["place"]}) for row in drawn(10, 50, 4)]
    assert fit(rows, ["place"]).covariates == {}


def test_a_source_that_is_left_out_does_not_change_its_fit() -> None:
    rows = drawn(6, 20, 5)
    outlier = [row._replace(source="outlier", log_error=row.log_error + 3) for row in rows[:20]]
    assert dict(left_out([*rows, *outlier], ["place"]))["outlier"] == fit(rows, ["place"])


def test_no_end_is_nearer_than_the_floor() -> None:
    rows = [row._replace(log_error=0.0) for row in drawn(6, 10, 6)]
    low, high = interval(rows[0], fit(rows, ["place"]))
    assert low <= -0.99 * FLOOR
    assert high >= 0.99 * FLOOR


def test_errors_that_quantities_of_the_cluster_explain_are_not_counted_twice() -> None:
    explained = [row._replace(log_error=error) for row, error in zip(drawn(8, 50, 7), _normal(400, 0.1), strict=True)]
    alone = fit(explained, [])
    both = fit([row._replace(deviation=0.1) for row in explained], [])
    assert sum(both.ends[ALL]) < 0.6 * sum(alone.ends[ALL])


def _normal(count: int, deviation: float) -> list[float]:
    result: list[float] = np.random.default_rng(8).normal(0.0, deviation, count).tolist()
    return result


def test_groups_of_few_sources_have_the_ends_of_all_groups() -> None:
    many = drawn(FEWEST_SOURCES, 20, 9)
    few = [row._replace(group="few", source=f"few {row.source}") for row in drawn(FEWEST_SOURCES - 1, 20, 10)]
    fitted = fit([*(row._replace(group="many") for row in many), *few], [])
    assert set(fitted.ends) == {ALL, "many"}
    assert interval(few[0], fitted) == interval(few[0]._replace(group=ALL), fitted)


def test_few_sources_have_the_ends_of_the_worst() -> None:
    """The next source may be like the worst of a few, however many rows the others have."""
    usual = drawn(4, 200, 11, between=0.0)
    worst = [row._replace(source="worst", log_error=row.log_error + 0.4) for row in usual[:5]]
    low, high = interval(usual[0], fit([*usual, *worst], [], ends="worst"))
    assert high >= max(row.log_error for row in worst)
    assert low >= -2.5 * max(-row.log_error for row in usual), "no measured time is far below its prediction"
    assert interval(usual[0], fit([*usual, *worst], []))[1] < high


def test_the_shortest_interval_covers_as_many_rows_of_skewed_errors() -> None:
    """A long tail above costs an interval with a twentieth beyond each end more length than it covers rows."""
    rows, new = (
        [row._replace(log_error=math.expm1(4 * row.log_error) / 4) for row in drawn(20, 60, seed)] for seed in (12, 13)
    )
    found = {ends: coverage(new, {}, fit(rows, ["place"], ends=ends)) for ends in get_args(Ends)}
    assert found["shortest"].width.mean() < found["tails"].width.mean() < found["worst"].width.mean()
    assert 0.85 <= found["shortest"].of_rows <= 0.95


def test_the_fewer_the_sources_the_wider_the_interval() -> None:
    factors = [student_factor(sources) for sources in (1, 2, 3, 5, 10, 15, 17, 30, 1000)]
    assert factors[0] == factors[1], "one source says nothing about differences of sources"
    assert factors[1:] == sorted(factors[1:], reverse=True)
    assert factors[3] == pytest.approx(2.132 * math.sqrt(1.2) / 1.6449, rel=1e-3)
    assert factors[-1] == pytest.approx(1.0, abs=0.01)
