"""Calibration of a cluster: runs probes on it and fits a cluster file to their points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.cluster_file.cluster_file import described
from scaleproof.validator.calibration.cluster_file.facts import CalibrationFacts, provenance
from scaleproof.validator.calibration.plan import ProbePlan, tasks
from scaleproof.validator.calibration.probing import Progress, probe
from scaleproof.validator.calibration.sites import site
from scaleproof.validator.measure import MeasureOptions, On
from scaleproof.validator.probe.points import Point


@dataclass(frozen=True)
class Calibrated:
    """cluster: data of its YAML file. points: measurements that it was fitted to. notes: outliers and what was left out, a line
    each."""

    cluster: Mapping[str, Any]
    points: Sequence[Point]
    notes: Sequence[str]


def calibrate(
    plan: ProbePlan,
    on: On | None = None,
    base: Mapping[str, Any] | None = None,
    hosts: int | None = None,
    watch: MeasureOptions | None = None,
    progress: AbstractContextManager[Progress] | None = None,
) -> Calibrated | None:
    """Runs the planned probes and fits a cluster to their points. None on a rank that was started from outside and is not rank
    0.

    base: data of the YAML file that describes the cluster; required for netlab and for several machines. hosts: number of hosts
    of a lab. progress: is called with a text before each probe. Raises InputError and RunError as `site` and `described` do.
    """
    if base is None and plan.names and "layer" not in plan.names:
        raise InputError(f"--probe {plan.names[0]}: the device of a rank is not known; add --probe layer, or give --cluster")
    cluster = Cluster.model_validate(base) if base else None
    with site(on, cluster, plan.ranks, watch or MeasureOptions(), hosts) as where:
        planned = tasks(plan, where, cluster)
        if not where.is_reporter:
            probe(planned, where, plan.timeout_s, lambda _: None)
            return None
        with progress or nullcontext(lambda _: None) as report:
            probed = probe(planned, where, plan.timeout_s, report)
    origin = provenance() | {"on": where.on, "models": ", ".join(model.name for model in plan.models)} | where.lab
    if base:
        origin["described by"] = str(base.get("name", "a file"))
    origin["probes"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in probed.took_s.items())
    facts = CalibrationFacts(where.on, where.nodes, plan.precision, base, origin)
    fitted, notes = described(probed.points, facts)
    return Calibrated(fitted, [*probed.points, facts.point()], notes)
