"""The page of runs along events of hosts, from the file that `faults SCENARIO --out` writes."""

from __future__ import annotations

from pathlib import Path

from scaleproof.reports.pages.page import build
from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome, ElasticRecord, StateCheck
from scaleproof.simulator.scenario.load import load

LOSSES = tuple(2.0 / step for step in range(1, 41))


def outcome(name: str, equal: bool = True) -> ElasticOutcome:
    timeline = elastic(load(name))
    last = timeline.stretches[-1].model_copy(update={"end_s": 1.25 * timeline.total_s})
    longer = timeline.model_copy(update={"stretches": (*timeline.stretches[:-1], last)})
    state = StateCheck(equal=equal, deviation=0.0, tolerance=1e-6, loss_deviation=0.0, losses=LOSSES)
    return ElasticOutcome(on="netlab", predicted=timeline, measured=longer, state=state)


def page(folder: Path, *outcomes: ElasticOutcome) -> str:
    record = ElasticRecord(events=outcomes, provenance={"cpu": "2 cores of a CPU", "date": "2026-11-27"})
    (folder / "events.json").write_text(record.to_json())
    return build(folder).path.read_text(encoding="utf-8")


def test_runs_have_a_page_with_throughput_losses_and_times(tmp_path: Path) -> None:
    text = page(tmp_path, outcome("netlab-host-returns"), outcome("netlab-host-added", equal=False))
    assert "2 runs along events: total times predicted to -20" in text
    assert "the state right in 1" in text
    assert "Measured on 2 cores of a CPU, 2026-11-27." in text
    assert "1. host 2 fails after step 16: 6 steps" in text
    assert "steps lost: 6 and 6" in text
    for name in ("netlab-host-returns", "netlab-host-added"):
        assert (tmp_path / f"figures/{name}-throughput.png").stat().st_size > 1000
        assert (tmp_path / f"figures/{name}-loss.svg").exists()
    assert (tmp_path / "tables/times.csv").read_text().startswith("scenario,time,predicted_s,measured_s")
