"""calibrate: probes a cluster where it is, and says what came of it as its file has it."""

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
    """cluster: as its YAML file has it. points: that it was made from. told: what is odd or was left out, a line each."""

    cluster: Mapping[str, Any]
    points: Sequence[Point]
    told: Sequence[str]


def calibrate(
    plan: ProbePlan,
    on: On | None = None,
    base: Mapping[str, Any] | None = None,
    hosts: int | None = None,
    watch: MeasureOptions | None = None,
    progress: AbstractContextManager[Progress] | None = None,
) -> Calibrated | None:
    """Runs what is planned and fits what it timed. None on a rank that somebody else started and that does not speak.

    base: the description that is measured, as its YAML file has it; netlab and several machines need one. hosts: of a lab.
    progress: is told what is going on, while the probes run. Raises InputError and RunError as `site` and `described` do.
    """
    if base is None and plan.names and "layer" not in plan.names:
        raise InputError(f"--probe {plan.names[0]}: what a rank computes on is not known; add --probe layer, or give --cluster")
    cluster = Cluster.model_validate(base) if base else None
    with site(on, cluster, plan.ranks, watch or MeasureOptions(), hosts) as where:
        planned = tasks(plan, where, cluster)
        if not where.speaks:
            probe(planned, where, plan.timeout_s, lambda _: None)
            return None
        with progress or nullcontext(lambda _: None) as tell:
            probed = probe(planned, where, plan.timeout_s, tell)
    told = provenance() | {"on": where.on, "models": ", ".join(model.name for model in plan.models)} | where.lab
    if base:
        told["described by"] = str(base.get("name", "a file"))
    told["probes"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in probed.took_s.items())
    facts = CalibrationFacts(where.on, where.nodes, plan.precision, base, told)
    found, odd = described(probed.points, facts)
    return Calibrated(found, [*probed.points, facts.point()], odd)
