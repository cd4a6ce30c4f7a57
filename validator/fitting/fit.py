"""Fits of a framework and a cluster to runs: from files to posterior, prediction of the target and the run to measure next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.gpus import with_gpus
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.fitted_constants import Posterior, fitted
from scaleproof.validator.fitting.next_run import NextRun, ranked
from scaleproof.validator.fitting.observations import observed
from scaleproof.validator.fitting.observed_run import ObservedRun


@dataclass(frozen=True)
class FittedRuns:
    """Runs, those that only check predictions, the posterior of the constants after the runs, the scenario that is predicted
    (with shipped constants), and layouts that may be measured next, the most informative first."""

    runs: tuple[ObservedRun, ...]
    checked: tuple[ObservedRun, ...]
    posterior: Posterior
    target: Scenario
    candidates: Sequence[NextRun]


def fit(
    places: Sequence[Path],
    reference: str | None,
    overrides: Sequence[str],
    target_gpus: int | None,
    most_gpus: int | None,
    notes: ImportNotes,
    report: Callable[[str], None] = lambda _: None,
    checks: Sequence[Path] = (),
) -> FittedRuns:
    """Fits constants to runs. Arguments and errors: see `observations.observed`.

    target_gpus: number of GPUs on which the scenario is predicted, its own if None. most_gpus: of the run to measure next.
    checks: of runs that are predicted and not given.
    """
    runs, checked = (observed(some, reference, overrides, notes) for some in (places, checks))
    target = load(reference, overrides) if reference is not None else max(runs, key=lambda run: run.gpus).scenario
    target = target if target_gpus is None else with_gpus(target, target_gpus)
    _check_one_system((*runs, *checked), target)
    report(f"fitting constants to {len(runs)} runs")
    posterior = fitted(runs)
    report("comparing runs to measure next")
    return FittedRuns(runs, checked, posterior, target, ranked(posterior, target, runs, most_gpus))


def _check_one_system(runs: Sequence[ObservedRun], target: Scenario) -> None:
    """Raises InputError for runs of another framework or cluster than the target's."""
    for run in runs:
        for part, own, wanted in (
            ("framework", run.scenario.framework.name, target.framework.name),
            ("cluster", run.scenario.cluster.name, target.cluster.name),
        ):
            if own != wanted:
                raise InputError(f"{run.place}: ran with the {part} {own}, not {wanted}; fit the runs of one {part} at a time")
