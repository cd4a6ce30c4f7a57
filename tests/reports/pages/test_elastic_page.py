"""The page of runs along events of hosts, from the file that `faults SCENARIO --out` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scaleproof.reports.pages.page import build
from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.scenario.load import load

LOSSES = [2.0 / step for step in range(1, 41)]


def outcome(name: str, **state: Any) -> dict[str, Any]:
    timeline = elastic(load(name)).plain()
    row = {"name": "whole run", "predicted_s": timeline["total_s"], "measured_s": 1.25 * timeline["total_s"]}
    words = {"words": "equal on all ranks", "right": True, "losses": LOSSES} | state
    longer = timeline["stretches"][-1] | {"end_s": 1.25 * timeline["total_s"]}
    measured = timeline | {"stretches": [*timeline["stretches"][:-1], longer]}
    return {"on": "netlab", "predicted": timeline, "measured": measured, "rows": [row], "state": words}


def page(folder: Path, *outcomes: dict[str, Any]) -> str:
    data = {"events": outcomes, "provenance": {"cpu": "2 cores of a CPU", "date": "2026-11-27"}}
    (folder / "events.json").write_text(json.dumps(data))
    return build(folder).path.read_text(encoding="utf-8")


def test_runs_have_a_page_with_throughput_losses_and_times(tmp_path: Path) -> None:
    text = page(tmp_path, outcome("netlab-host-returns"), outcome("netlab-host-added", right=False))
    assert "2 runs along events: total times predicted to −20" in text
    assert "the state right in 1" in text
    assert "Measured on 2 cores of a CPU, 2026-11-27." in text
    assert "Host 2 fails after step 16; host 2 joins at 38.0 s" in text
    assert "steps lost: 6 and 6" in text
    for name in ("netlab-host-returns", "netlab-host-added"):
        assert (tmp_path / f"figures/{name}-throughput.png").stat().st_size > 1000
        assert (tmp_path / f"figures/{name}-loss.svg").exists()
    assert (tmp_path / "tables/times.csv").read_text().startswith("scenario,time,predicted_s,measured_s")
