"""The functions of the package for scripts and notebooks.

Wherever a scenario is expected, a name, a path or a mapping of its fields will do, with `overrides` such as
`{"strategy.workers": 8}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import Overrides, Reference, load
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.compare import Comparison
    from scaleproof.simulator.analysis.evidence import Evidence
    from scaleproof.simulator.analysis.planner.search import PlanResult
    from scaleproof.simulator.model import AnyModel
    from scaleproof.simulator.run.run import Run


def scenario(reference: Scenario | Reference, overrides: Overrides = ()) -> Scenario:
    """The scenario that a reference stands for. Raises InputError for overrides of a scenario that is already built."""
    if not isinstance(reference, Scenario):
        return load(reference, overrides)
    if overrides:
        raise InputError("overrides apply to a name, a path or a mapping; give the scenario as one of these")
    return reference


def predict(reference: Scenario | Reference, overrides: Overrides = (), *, interval: bool = True) -> Run:
    """Predicts step time, throughput, breakdown, scaling efficiency, memory, energy and cost. Raises ScaleproofError.

    interval: whether to compute the 90 % prediction interval.
    """
    from scaleproof.simulator.predict import predict as predict_scenario

    return predict_scenario(scenario(reference, overrides), interval=interval)


def plan(
    reference: Scenario | Reference,
    gpus: int | None = None,
    overrides: Overrides = (),
    *,
    objective: str = "time",
    top: int = 10,
    servers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> PlanResult:
    """Searches for the best ways to train a scenario's model on a number of GPUs, the scenario's own number if None.

    objective: time, cost, energy or tokens-per-dollar. top: number of results. servers: maximum number of parameter servers.
    progress: called with texts. Raises ScaleproofError; InputError for an argument of the wrong type.
    """
    from scaleproof.simulator.analysis.planner.objectives import Objective
    from scaleproof.simulator.analysis.planner.search import plan as search

    for name, value in (("gpus", gpus), ("top", top), ("servers", servers)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: expected a whole number from 1 on, got {value!r}")
    known = {name: name for name in get_args(Objective)}
    if objective not in known:
        raise InputError(f"objective: expected one of {', '.join(known)}, got {objective!r}")
    return search(scenario(reference, overrides), gpus, known[objective], None, top, progress, servers)


def compare(a: Scenario | Reference, b: Scenario | Reference) -> Comparison:
    """Differences of two scenarios in fields, times, memory and cost, with 90 % intervals. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.compare import compare as compare_scenarios

    return compare_scenarios(scenario(a), scenario(b))


def evidence(reference: Scenario | Reference, overrides: Overrides = ()) -> Evidence:
    """Published runs that are similar to a scenario, and how well they are predicted. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.evidence import evidence as similar

    return similar(scenario(reference, overrides))


def collective(op: str, size_bytes: float, ranks: int | Sequence[int], cluster: str, algorithm: str | None = None) -> float:
    """Seconds of a collective on a cluster, given by its name or path. Arguments: see `collective_time`."""
    from scaleproof.simulator.analysis.collective.time import collective_time

    return collective_time(op, size_bytes, ranks, load_cluster(catalog.find_part("cluster", cluster, Path())), algorithm)


def model(reference: str, **changes: Any) -> AnyModel:
    """A model with some fields changed: a shipped name, a path, `hf:path/config.json` or `python:module:function`."""
    return load_model(reference, **changes)


def report(folder: str | Path) -> Path:
    """Writes the page of a results folder and returns its path. Raises ScaleproofError."""
    from scaleproof.reports.pages.page import build

    return build(Path(folder)).path
