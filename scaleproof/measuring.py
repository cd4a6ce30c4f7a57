"""The functions of the package that measure: machines, training runs, and scripts. Arguments are as in `scaleproof.api`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scaleproof.api import model, scenario
from scaleproof.arguments import check_count, check_number, check_path, check_text, check_texts
from scaleproof.results import ReconciliationResult, RunResult
from scaleproof.simulator.common.errors import InputError, naming_extras
from scaleproof.simulator.scenario.load import Overrides, Reference, override_texts
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.fit_record import FitRecord
    from scaleproof.validator.measure import MeasureOptions, On


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
def fit(
    runs: Sequence[str | Path],
    reference: str | Path | None = None,
    overrides: Overrides = (),
    *,
    checks: Sequence[str | Path] = (),
    target_gpus: int | None = None,
    out: str | Path | None = None,
) -> FitRecord:
    """Fits a framework and a cluster to a few measured runs. Raises ScaleproofError. Needs the extra `validator`.

    runs: CSV files, results folders of `measure`, and logs of training software. reference: the scenario of the runs, which is
    also predicted, on `target_gpus` GPUs if given. checks: runs that are predicted and not given to the fit. out: path of the
    fitted framework file, for the override `framework`.
    """
    from scaleproof.validator.calibration.imports.reading import ImportNotes
    from scaleproof.validator.fitting import fit_file, record
    from scaleproof.validator.fitting.fit import fit as fit_constants

    if not runs or isinstance(runs, str | Path):
        raise InputError(f"runs: expected a list with at least one path, got {runs!r}")
    given, checked = ([check_path(name, one) for one in paths] for name, paths in (("runs", runs), ("checks", checks)))
    name = None if reference is None else check_text("reference", reference)
    target, notes = check_count("target_gpus", target_gpus), ImportNotes()
    found = fit_constants(given, name, override_texts(overrides), target, None, notes, checks=checked)
    if out is not None:
        fit_file.write(check_path("out", out), found.posterior, found.runs, found.target)
    return record.of(found)


@naming_extras()
def capture(
    command: Sequence[str],
    out: str | Path,
    *,
    ranks: int | None = None,
    device: str | Path | None = None,
    cluster: str | Path | None = None,
    timeout_s: float = 600.0,
) -> Path:
    """Records a step of a training script without its GPUs, as a scenario; returns its path. Raises ScaleproofError. Needs the
    extra `validator`.

    command: such as ["python", "train.py"]. ranks: of the job, None for those of torchrun's options. device: the GPU that the
    script sees, the cluster's if None.
    """
    from scaleproof.validator.capture.capture import CaptureOptions
    from scaleproof.validator.capture.capture import capture as play
    from scaleproof.validator.capture.command.command_line import job_of, parse

    path, limit_s = check_path("out", out), check_number("timeout_s", timeout_s, "600")
    seen, place = (None if one is None else check_text(name, one) for name, one in (("device", device), ("cluster", cluster)))
    started = parse(check_texts("command", command))
    job, name = job_of(started, check_count("ranks", ranks), seen, place)
    captured, _ = play(job, CaptureOptions(name, place, limit_s), lambda _: None)
    captured.write(path)
    return path


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
