"""Spreads of step times in published runs, predicted from constants that are the same for all rows."""

from __future__ import annotations

from pathlib import Path

from scaleproof.proof.published.step_time_quantiles import FITTED, predict, spread
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.simulator.uncertainty.step_distribution import DRIFT, JITTER, NETWORK, NODE_LINKS

ROWS = read_table(find_table(Path("step_time_quantiles.csv")))[1]
ROW = {
    "id": "some-0001", "benchmark": "llama2_70b_lora", "accelerators": "512", "nodes": "64", "global_batch": "64", "steps": "8",
    "accelerator": "NVIDIA H100", "network": "8x400 Gb/s InfiniBand", "p50": "0.2", "p95": "0.202",
}  # fmt: skip


def within(rows: list[dict[str, str]], points: float) -> float:
    """Share of rows whose spread is predicted within a number of points."""
    off = [abs(100 * (1 + spread(row) - float(row["p95"]) / float(row["p50"]))) for row in rows]
    return sum(one <= points for one in off) / len(off)


def test_spreads_of_most_rows_are_within_one_and_a_half_points() -> None:
    others = [row for row in ROWS if row["id"] not in FITTED]
    assert within(others, 1.5) > 0.95
    assert within(others, 0.5) > 0.85


def test_rows_that_constants_were_fitted_on_are_not_scored() -> None:
    found = [predict(row) for row in ROWS]
    assert sum(bool(one.skipped) for one in found) == len(FITTED) == 18
    assert {one.of for one in found} == {"spread"}


def test_spreads_grow_with_nodes_and_shrink_with_the_steps_of_each_value() -> None:
    assert spread(ROW | {"nodes": "64"}) > spread(ROW | {"nodes": "2"}) > spread(ROW | {"nodes": "1"}) > 0
    assert spread(ROW) > spread(ROW | {"global_batch": "8"})


def test_every_source_adds_to_the_spread_and_none_gives_none() -> None:
    for source in (DRIFT, JITTER, NETWORK, NODE_LINKS):
        assert spread(ROW, {source: 0.0}) < spread(ROW)
    assert spread(ROW, dict.fromkeys((DRIFT, JITTER, NETWORK, NODE_LINKS), 0.0)) == 0


def test_other_benchmarks_are_scored_with_an_assumption_and_rows_without_numbers_skipped() -> None:
    assert "evaluation interval" in predict(ROW | {"benchmark": "a new one"}).assumed
    assert predict(ROW | {"steps": ""}).skipped
    assert predict(ROW | {"p50": "0"}).skipped
