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
    ReconciliationResult,
    RunResult,
    SweepResult,
)
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, naming_extras
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.gpus import with_gpus
from scaleproof.simulator.scenario.load import Overrides, Reference, load, override_texts
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    from scaleproof.reports.claims.result import Result
    from scaleproof.simulator.analysis.crossover.crossover import Crossover
    from scaleproof.simulator.analysis.goodput import Goodput
    from scaleproof.simulator.analysis.planner.objectives import Objective
    from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity
    from scaleproof.simulator.model import AnyModel
    from scaleproof.validator.measure import MeasureOptions, On


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
    from scaleproof.reports.claims.claim import names as all_names
    from scaleproof.reports.claims.claim import read
    from scaleproof.reports.claims.result import results_of

    return results_of([read(check_text("names", name)) for name in names or all_names()])


@naming_extras()
def measure(
    reference: Scenario | Reference,
    overrides: Overrides = (),
    *,
    on: On | None = None,
    options: MeasureOptions | None = None,
) -> RunResult:
    """Trains a scenario and returns the measured run. Raises ScaleproofError. Needs the extra `validator`.

    on: local, netlab or cluster; None for the ranks that torchrun or srun has started, otherwise local.
    """
    from scaleproof.validator.measure import MeasureOptions
    from scaleproof.validator.measure import measure as measure_scenario

    if options is not None and not isinstance(options, MeasureOptions):
        raise InputError(f"options: expected MeasureOptions, got {options!r}")
    return RunResult.of(measure_scenario(scenario(reference, overrides), on, options or MeasureOptions()))


@naming_extras()
def reconcile(
    *references: Scenario | Reference,
    overrides: Overrides = (),
    on: On | None = None,
    out: str | Path | None = None,
    options: MeasureOptions | None = None,
) -> ReconciliationResult:
    """Predicts and trains scenarios, and explains the differences. Raises ScaleproofError. Needs the extra `validator`.

    on: as for `measure`. out: folder for the runs and reconcile.json, which `report` reads.
    """
    from scaleproof.validator.launch.launch import require_torch
    from scaleproof.validator.measure import where_to
    from scaleproof.validator.reconciliation.reconcile import reconcile as reconcile_scenarios

    # what holds for all scenarios is refused here, what holds for one is in its result
    require_torch()
    where_to(on)
    if not references:
        raise InputError("give at least one scenario to reconcile")
    scenarios = [scenario(one, overrides) for one in references]
    folder = None if out is None else check_path("out", out)
    cases = reconcile_scenarios(scenarios, lambda one: measure(one, on=on, options=options), folder, None, lambda _: None)
    return ReconciliationResult(tuple(cases), folder)


@naming_extras()
def calibrate(
    out: str | Path,
    *,
    on: On | None = None,
    cluster: str | Path | None = None,
    budget_s: float = 35.0,
    models: Sequence[str] = ("gpt-mini", "mlp-mini"),
) -> Path:
    """Measures this machine or a cluster, writes a cluster file and returns its path. Raises ScaleproofError. Needs the extra
    `validator`.

    cluster: name or path of the cluster's description, needed for on="netlab". budget_s: seconds for all probes together.
    models: whose layers are timed.
    """
    from scaleproof.simulator.model import Gpt, Mlp
    from scaleproof.validator.calibration.calibrate import calibrate as measure_cluster
    from scaleproof.validator.calibration.cluster_file.files import description, write
    from scaleproof.validator.calibration.plan import ProbePlan

    path, seconds = check_path("out", out), check_number("budget_s", budget_s, "35")
    base = None if cluster is None else description(check_text("cluster", cluster))
    trained = [one for one in map(model, check_texts("models", models)) if isinstance(one, Gpt | Mlp)]
    if len(trained) < len(models):
        raise InputError("models: only gpt and mlp models can be trained here; give some of these")
    calibrated = measure_cluster(ProbePlan(trained, budget_s=seconds), on, base)
    if calibrated is not None:
        write(calibrated.cluster, path, calibrated.points)
    return path


def collective(
    op: str, size_bytes: float, ranks: int | Sequence[int], cluster: str | Path, algorithm: str | None = None
) -> float:
    """Seconds of a collective on a cluster, 0 on one rank. Raises ScaleproofError.

    op: such as all_reduce, all_gather or alltoall. size_bytes: as counted by nccl-tests. ranks: their number, filling the
    cluster's nodes in order, or a list of ranks. cluster: a name or a path. algorithm: such as ring, the one that the library
    would choose if None.
    """
    from scaleproof.simulator.analysis.collective.time import collective_time

    found = load_cluster(catalog.find_part("cluster", check_text("cluster", cluster), Path()))
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
