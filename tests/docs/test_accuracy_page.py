"""docs/measured/accuracy.md and its log agree with the outputs of `scaleproof score` that are kept next to them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import scaleproof
from scaleproof.simulator.published.tables import find_table, read_table
from tests.docs.accuracy_page import ALL, CALIBRATED, LOG, OUTPUTS, RESULTS, Part, output, shown

TABLES = (
    "collectives", "data_parallel_scaling", "fine_tuning", "gpu_kernels", "layer_times", "pipeline_schedules",
    "recommenders", "step_time_quantiles", "transformer_training", "vision",
)  # fmt: skip
# Tables whose rows are not of speed.
OTHERS = ("gpu_kernels", "step_time_quantiles")


def test_the_page_shows_all_shipped_tables_and_counts_every_row() -> None:
    parts = shown(ALL)
    assert tuple(parts) == (*TABLES, "all tables")
    for name in TABLES:
        rows = len(read_table(find_table(Path(f"{name}.csv")))[1])
        # rows of layers have two times
        assert parts[name].lines["all"].rows == rows * (2 if name == "layer_times" else 1)
    totals = [parts[name].lines["all"].rows for name in TABLES if name not in OTHERS]
    assert parts["all tables"].lines["all"].rows == sum(totals), "kernels and spreads count in totals of their own"


@pytest.mark.parametrize("part", [*shown(ALL).values(), *shown(CALIBRATED).values()])
def test_rows_that_are_not_scored_have_a_reason(part: Part) -> None:
    skipped = sum(line.rows - line.scored for line in part.sets.values())
    reasons = re.findall(r"^skipped: (.*)$", part.text, re.MULTILINE)
    assert sum(int(count) for text in reasons for count in re.findall(r"\((\d+) rows\)", text)) == skipped


def test_the_headline_equals_the_current_score() -> None:
    many = shown(CALIBRATED)["transformer_training"].lines["more than 2 nodes"]
    headline = (
        f"On the {many.scored} rows of more than two nodes that are not fitted on, the mean error is {many.mean} %, "
        f"the median {many.median} %."
    )
    assert re.findall(r"^\*\*(On the .*)\*\*$", LOG.read_text(), re.MULTILINE) == [headline]


def test_errors_compared_with_other_simulators_are_current() -> None:
    lines = shown(ALL)["transformer_training"].lines
    found = re.findall(r"\| `(\w+)`, (\d+) rows \| ([\d.]+) %, worst ([\d.]+) % \|", LOG.read_text())
    assert len(found) == 6
    for name, *numbers in found:
        assert numbers == [str(lines[name].scored), str(lines[name].mean), str(lines[name].worst)]


def test_results_by_source_equal_the_current_score() -> None:
    lines = shown(ALL)["transformer_training"].lines
    row = r"^\| `(\w+)` \| [^|]+ \| ([\d,]+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$"
    found = {
        name: [float(number) for number in numbers] for name, *numbers in re.findall(row, RESULTS.read_text(), re.MULTILINE)
    }
    speeds = {name: line for name, line in lines.items() if name in found}
    assert found == {name: [line.scored, line.median, line.worst, line.covered] for name, line in speeds.items()}
    assert sum(line.scored for line in speeds.values()) == lines["all"].scored


def test_sentences_of_the_results_equal_the_current_score() -> None:
    page, lines = " ".join(RESULTS.read_text().split()), shown(ALL)["transformer_training"].lines
    calibrated = shown(CALIBRATED)["transformer_training"].lines["more than 2 nodes"]
    total, many = lines["all"], lines["more than 2 nodes"]
    assert f"is right in {total.order} % of the pairs" in page
    assert f"following the prediction costs {total.regret} % of" in page
    assert f"median {many.median} % of {many.scored} rows" in page
    assert f"it is {calibrated.median} %" in page
    for name in ("torchtitan", "simumax_b200", "bigscience", "ultrascale"):
        assert re.search(rf"`{name}` (median )?{lines[f'{name} memory'].median} %", page), name


@pytest.mark.nightly
@pytest.mark.parametrize("command", OUTPUTS)
def test_the_outputs_are_those_of_today(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output(command), f"write it again: {command} > docs/measured/{OUTPUTS[command]}"
