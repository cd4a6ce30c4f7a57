"""The functions of the package for scripts and notebooks.

Wherever a scenario is expected, a name, a path or a mapping of its fields will do, with `overrides` such as
`{"strategy.workers": 8}`. Results have `to_frame()` and `plot()`, and notebooks show them as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, overload

from scaleproof.arguments import (
    check_axes,
    check_count,
    check_count_or_counts,
    check_counts,
    check_flag,
    check_number,
    check_path,
    check_ranks,
    check_text,
    check_texts,
)
from scaleproof.results import (
    ComparisonResult,
    EvidenceResult,
    PlansBySize,
    RankedPlans,
    RunResult,
    SweepResult,
)
from scaleproof.simulator.common.errors import InputError, naming_extras
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.gpus import with_gpus
from scaleproof.simulator.scenario.load import Overrides, Reference, load, override_texts
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    from scaleproof.proof.claims.result import Result
    from scaleproof.simulator.analysis.crossover.crossover import Crossover
    from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
    from scaleproof.simulator.analysis.goodput import Goodput
    from scaleproof.simulator.analysis.planner.objectives import Objective
    from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity
    from scaleproof.simulator.model import AnyModel


def scenario(reference: Scenario | Reference, overrides: Overrides = (), gpus: int | None = None) -> Scenario:
    """The scenario that a reference stands for, on `gpus` GPUs if given.

    Raises InputError for overrides of a scenario that is already built, and for GPUs on which it cannot be trained.
    """
    gpus = check_count("gpus", gpus)
    if not isinstance(reference, Scenario):
        return load(reference, [*override_texts(overrides), *([] if gpus is None else [f"{GPUS}={gpus}"])])
    if overrides:
        raise InputError("overrides apply to a name, a path or a mapping; give the scenario as one of these")
    return reference if gpus is None else with_gpus(reference, gpus)


def predict(
    reference: Scenario | Reference, overrides: Overrides = (), *, gpus: int | None = None, interval: bool = True
) -> RunResult:
    """Predicts step time, throughput, breakdown, scaling efficiency, memory, energy and cost. Raises ScaleproofError.

    gpus: number of GPUs to train on, with the batch and the degrees of the scenario, its own number if None. interval: whether
    to compute the 90 % prediction interval.
    """
    from scaleproof.simulator.predict import predict as predict_scenario

    check_flag("interval", interval)
    return RunResult.of(predict_scenario(scenario(reference, overrides, gpus), interval=interval))


@overload
def plan(
    reference: Scenario | Reference,
    gpus: int | None = None,
    overrides: Overrides = (),
    *,
    objective: Objective = "time",
    top: int = 10,
    servers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> RankedPlans: ...


@overload
def plan(
    reference: Scenario | Reference,
    gpus: Sequence[int],
    overrides: Overrides = (),
    *,
    objective: Objective = "time",
    top: int = 10,
    servers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> PlansBySize: ...


def plan(
    reference: Scenario | Reference,
    gpus: int | Sequence[int] | None = None,
    overrides: Overrides = (),
    *,
    objective: Objective = "time",
    top: int = 10,
    servers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> RankedPlans | PlansBySize:
    """Searches for the best ways to train a scenario's model on a number of GPUs, the scenario's own number if None; or on each
    of several, with the same global batch, for which nodes are added to the cluster where it has too few.

    objective: time, cost, energy or tokens-per-dollar. top: number of results. servers: maximum number of parameter servers.
    progress: called with texts. Raises ScaleproofError; InputError for an argument of the wrong type.
    """
    from scaleproof.simulator.analysis.planner.objectives import Objective
    from scaleproof.simulator.analysis.planner.search import plan as search
    from scaleproof.simulator.analysis.planner.sizes import plan_sizes

    sizes, servers = check_count_or_counts("gpus", gpus), check_count("servers", servers)
    most = check_count("top", top) or 1
    if objective not in get_args(Objective):
        raise InputError(f"objective: expected one of {', '.join(get_args(Objective))}, got {objective!r}")
    planned = scenario(reference, overrides)
    if isinstance(sizes, list):
        options = {"objective": objective, "top": most, "servers": servers}
        return PlansBySize(tuple(plan_sizes(planned, sorted(set(sizes)), options, None, progress)))
    return RankedPlans.of(search(planned, sizes, objective, None, most, progress, servers))


def compare(a: Scenario | Reference, b: Scenario | Reference, *, gpus: int | None = None) -> ComparisonResult:
    """Differences of two scenarios in fields, times, memory and cost, with 90 % intervals. Raises ScaleproofError.

    gpus: number of GPUs that both train on, their own numbers if None.
    """
    from scaleproof.simulator.analysis.compare import compare as compare_scenarios

    return ComparisonResult.of(compare_scenarios(scenario(a, (), gpus), scenario(b, (), gpus)))


@naming_extras()
def sweep(
    study: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    axes: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    gpus: Sequence[int] = (),
    out: str | Path | None = None,
    resume: bool = True,
    intervals: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> SweepResult:
    """Predicts all points of a study. Raises ScaleproofError. Needs the extra `studies`.

    study: the name of a shipped study, a path, or a mapping with `scenario` and `axes`; with axes or gpus, a scenario will do.
    overrides: of its scenario. axes: values by field, in addition to those of the study. gpus: numbers of GPUs, an axis too.
    out: folder in which tables are saved as points finish. resume: whether points that the folder already has are not
    computed again. intervals: whether to compute the 90 % interval of each step time. progress: called with numbers of
    finished points.
    """
    from scaleproof.simulator.analysis.study.study import read
    from scaleproof.simulator.analysis.study.sweep import sweep as sweep_study

    check_flag("resume", resume)
    check_flag("intervals", intervals)
    counts, folder = check_counts("gpus", gpus), None if out is None else check_path("out", out)
    found = read(study, override_texts(overrides), check_axes(axes) | ({GPUS: counts} if counts else {}))
    return SweepResult(found, sweep_study(found, folder, resume=resume, intervals=intervals, progress=progress))


def evidence(reference: Scenario | Reference, overrides: Overrides = (), *, gpus: int | None = None) -> EvidenceResult:
    """Published runs that are similar to a scenario, and how well they are predicted. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.evidence import evidence as similar

    return EvidenceResult.of(similar(scenario(reference, overrides, gpus)))


def sensitivity(reference: Scenario | Reference, overrides: Overrides = ()) -> Sensitivity:
    """Elasticities of the throughput to the parameters of the cluster, the batch and the servers. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity as elasticities

    return elasticities(scenario(reference, overrides))


def goodput(reference: Scenario | Reference, overrides: Overrides = (), *, days: float = 30.0) -> Goodput:
    """The effective training time ratio under failures, and its losses by cause. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.goodput import goodput as training_time_ratio

    return training_time_ratio(scenario(reference, overrides), check_number("days", days, "30"))


def elastic(reference: Scenario | Reference, overrides: Overrides = ()) -> ElasticTimeline:
    """Training along `reliability.events`: hosts that fail, return, join or are interrupted. Raises ScaleproofError."""
    from scaleproof.simulator.analysis.elastic import elastic as along_events

    return along_events(scenario(reference, overrides))


def crossover(
    reference: str | Path,
    x: str = "",
    y: str = "workers",
    strategies: Sequence[str] = (),
    points: int = 9,
    overrides: Overrides = (),
) -> Crossover:
    """The fastest strategy over two fields of a scenario. Raises ScaleproofError.

    x, y: a field, or `field=from..to`; y also `field=one,two`. strategies: such as ring and ps; empty for all that apply.
    points: number of values of x.
    """
    from scaleproof.simulator.analysis.crossover.crossover import crossover as strategy_map

    chosen = check_texts("strategies", strategies)
    count = check_count("points", points) or 1
    return strategy_map(reference, check_text("x", x), check_text("y", y), chosen, count, override_texts(overrides))


@naming_extras()
def claims(*names: str) -> list[Result]:
    """Results of claims of published articles, by name, by words of their text or by path; of all claims by default."""
    from scaleproof.proof.claims.claim import names as all_names
    from scaleproof.proof.claims.claim import read
    from scaleproof.proof.claims.result import results_of

    return results_of([read(check_text("names", name)) for name in names or all_names()])


def collective(
    op: str, size_bytes: float, ranks: int | Sequence[int], cluster: str | Path, algorithm: str | None = None
) -> float:
    """Seconds of a collective on a cluster, 0 on one rank. Raises ScaleproofError.

    op: such as all_reduce, all_gather or alltoall. size_bytes: as counted by nccl-tests. ranks: their number, filling the
    cluster's nodes in order, or a list of ranks. cluster: a name or a path. algorithm: such as ring, the one that the library
    would choose if None.
    """
    from scaleproof.simulator.analysis.collective.time import collective_time

    found = load_cluster(check_text("cluster", cluster))
    size, group = check_number("size_bytes", size_bytes, "2**30"), check_ranks("ranks", ranks)
    return collective_time(check_text("op", op), size, group, found, algorithm)


def model(reference: str, **changes: Any) -> AnyModel:
    """A model with some fields changed: a shipped name, a path, `hf:path/config.json` or `python:module:function`."""
    return load_model(reference, **changes)


@naming_extras()
def report(folder: str | Path) -> Path:
    """Writes the page of a results folder and returns its path. Raises ScaleproofError. Needs the extra `reports`."""
    from scaleproof.reports.pages.page import build

    return build(check_path("folder", folder)).path
