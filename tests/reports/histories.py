"""Histories in the format of reconcile and calibrate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scaleproof.simulator.cluster.quantities import Interval
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.history import append_cases, append_cluster
from scaleproof.validator.reconciliation.reconcile import ReconciledCase

BEGIN = datetime(2026, 10, 1, 8, tzinfo=UTC)
STEADY_S = (0.0200, 0.0202, 0.0199, 0.0201, 0.0200)


def scenario(name: str, samples: int = 16) -> Scenario:
    return Scenario.model_validate(
        {
            "name": name,
            "model": {"kind": "mlp", "layers": 2, "inputs": 8, "hidden": 8, "outputs": 4},
            "cluster": {
                "name": "lab",
                "node": {"devices": 8, "link": {"bandwidth": "2 GB/s", "latency": "50 us"}},
                "device": {"name": "cpu", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s"},
            },
            "strategy": {"kind": "data_parallel", "workers": 2},
            "batch": {"total": samples},
        }
    )


def reconciled(out: Path, name: str, times_s: Sequence[float], host: str = "vm", samples: int = 16, week: int = 0) -> None:
    """Appends a measured run a day, each predicted to take 20 ms and with an interval of 2 % to either side."""
    one = scenario(name, samples)
    cases = []
    for day, step_time_s in enumerate(times_s):
        date = (BEGIN + timedelta(days=7 * week + day)).isoformat(timespec="seconds")
        run = Run(
            "predicted", name, "data_parallel", 2, 2, 16, 0.02, (), {}, {"compute": 0.01}, prediction_interval_s=(0.018, 0.022)
        )
        measured = replace(
            run, origin="measured", step_time_s=step_time_s, provenance={"date": date, "host": host, "torch": "2.13"}
        )
        interval_s = (step_time_s * 0.98, step_time_s * 1.02)
        cases.append(ReconciledCase(one, run, replace(measured, step_time_interval_s=interval_s)))
    append_cases(cases, out)


def calibrated(out: Path, *latencies: str) -> None:
    """Appends a calibration a day, of the link's latency."""
    cluster = scenario("any").cluster
    link = cluster.node.link
    assert link is not None
    for day, latency in enumerate(latencies):
        number = float(latency.removesuffix(" us"))
        node = cluster.node.model_copy(update={"link": link.model_copy(update={"latency_s": number * 1e-6})})
        intervals = {"node.link.latency": Interval(low=f"{0.9 * number} us", high=f"{1.2 * number} us")}
        provenance = {"host": "vm", "date": (BEGIN + timedelta(days=day)).isoformat(timespec="seconds")}
        append_cluster(cluster.model_copy(update={"node": node, "uncertainty": intervals, "provenance": provenance}), out)
