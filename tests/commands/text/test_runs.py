"""Tables of measured runs: column widths follow from their cells, unknown quantities are omitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scaleproof.commands.text.runs import RunTable, listing, plain
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.results import KeptRun

Make = Callable[..., Scenario]
LAB = {
    "link rate": "500 Mbit/s requested, 99.3% of it measured",
    "round trip": "17 us over TCP",
    "latency": "its own, and more",
}
RIGHT = Verification("one process", deviation=1e-7, tolerance=1e-2)


def measured(small: Make, name: str = "small", provenance: dict[str, str] | None = None, **fields: Any) -> Run:
    where = {"on": "local", "host": "here", "date": f"{datetime.now(UTC).year}-03-01T12:30:59+00:00"}
    run = replace(predict(small(f"name={name}")), origin="measured", compute="real", spans=None, step_time_s=0.215)
    return replace(run, **fields, provenance=where | (provenance or {}))


def kept(*runs: Run) -> list[KeptRun]:
    return [KeptRun(Path("out") / run.scenario, run) for run in runs]


def test_names_are_complete_and_columns_are_aligned(small: Make) -> None:
    runs = [measured(small, "a" * length) for length in (1, 33)]
    for lines in (
        [RunTable([small(f"name={run.scenario}") for run in runs], False).row(run) for run in runs],
        listing(kept(*runs), Path("out")).splitlines()[1:],
    ):
        assert [line.split()[0] for line in lines] == [run.scenario for run in runs]
        assert len({line.index("215 ms") for line in lines}) == 1


def test_the_interval_is_shown_if_known(small: Make) -> None:
    none = measured(small, step_times_s=(0.2, 0.23), step_time_interval_s=None)
    known = replace(none, step_time_interval_s=(0.212, 0.218))
    rows = listing(kept(none, known), Path("out")).splitlines()[1:]
    assert "±" not in rows[0]
    assert "215 ms ± 3.00 ms" in rows[1]
    for_programs = plain(kept(none)[0])
    assert for_programs["step_time_interval_s"] is None
    assert (for_programs["step_time_min_s"], for_programs["step_time_max_s"]) == (0.2, 0.23)


def test_a_list_fits_120_columns_and_names_the_host_once(small: Make) -> None:
    run = measured(
        small, "netlab-servers-of-two", {"on": "netlab"}, strategy="parameter_server", compute="paced", verified=RIGHT
    )
    run = replace(run, step_time_interval_s=(0.212, 0.218))
    text = listing(kept(run, run), Path("out"))
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("here") == 1
    assert " netlab, paced 03-01 12:30 yes, off by 1e-07" in text
    elsewhere = measured(small, provenance={"host": "far", "date": "1999-03-01T12:30:59+00:00"})
    lines = listing(kept(run, elsewhere), Path("out")).splitlines()
    assert ["here" in line for line in lines] == [False, True, False]
    assert "1999-03-01 12:30" in lines[2]


def test_an_emulated_network_is_described_before_the_table(small: Make) -> None:
    table = RunTable([small()], verified=True)
    lab, titles = table.head(measured(small, provenance=LAB)).splitlines()
    assert lab == "netlab: links are tested before each run; latency: its own"
    assert titles.split() == ["scenario", "ranks", "step", "time", "on", "trained", "correctly"]
    assert table.head(measured(small)) == titles
    assert "trained" not in RunTable([small()], verified=False).head(measured(small))
