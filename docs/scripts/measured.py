"""Measures again what docs/measured/servers-and-rings.md shows: servers and rings as workers are added, paced, and forecasts.

Writes docs/measured/servers-and-rings.json and draws docs/images/servers-and-rings.png, in minutes, on hosts of a network
inside this machine: it needs root and iproute2. Run: make measured
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from scaleproof.reports.charts.curves import ThroughputPoint, curves
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.units import format_change
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, On, measure

DOCS: Final = Path(__file__).parents[1]
RESULT: Final = DOCS / "measured" / "servers-and-rings.json"
PICTURE: Final = DOCS / "images" / "servers-and-rings.png"
WORKERS: Final = (1, 2, 4, 8, 16)
# 3.4 MB of gradients, so that sixteen workers of one server take seconds and not minutes
COMMON: Final = ("model.hidden=128", "cluster=netlab-200mbit", "cluster.nodes=24", "batch={per_worker: 8}", "steps=6")
FAMILIES: Final = {
    "one server": ("netlab-servers-1", ()),
    "four servers": ("netlab-servers-4", ()),
    "ring": ("netlab-ddp-after", ("strategy.bucket=25 MiB", "strategy.first_bucket=25 MiB")),
}


def scenario(family: str, workers: int) -> Scenario:
    """The scenario of a family with N workers."""
    name, own = FAMILIES[family]
    return load(name, [*COMMON, *own, f"strategy.workers={workers}"])


def point(family: str, workers: int) -> dict[str, Any]:
    """One point of both curves."""
    one = scenario(family, workers)
    # one worker that talks to nobody needs no network
    where: On = "netlab" if one.strategy.ranks > 1 else "local"
    predicted, measured = predict(one), measure(one, where, MeasureOptions(timeout_s=120.0, verify=True))
    assert measured.verified is not None
    print(
        f"{family:<14} {workers:>3} workers  predicted {predicted.step_time_s:6.3f} s  measured {measured.step_time_s:6.3f} s"
        f"  {format_change(predicted.step_time_s / measured.step_time_s - 1)}",
        flush=True,
    )
    return {
        "family": family,
        "workers": workers,
        "predicted_s": predicted.step_time_s,
        "measured_s": measured.step_time_s,
        "measured_steps_s": measured.step_times_s,
        "samples": one.total_samples,
        "deviation": measured.verified["deviation"],
        "compute_overrun": measured.provenance["compute_overrun"],
        "provenance": dict(measured.provenance),
    }


def picture(points: list[dict[str, Any]]) -> bytes:
    """A PNG of both curves of each family."""
    families = {
        family: [
            ThroughputPoint(one["workers"], one["samples"] / one["predicted_s"], one["samples"] / one["measured_s"])
            for one in points
            if one["family"] == family
        ]
        for family in FAMILIES
    }
    return curves(families, "One server is full with one worker, four are with four; the ring goes on")


if __name__ == "__main__":
    points = [point(family, workers) for family in FAMILIES for workers in WORKERS]
    write_atomically(RESULT, (json.dumps(points, indent=1) + "\n").encode())
    write_atomically(PICTURE, picture(points))
