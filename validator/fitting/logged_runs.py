"""Measured runs in logs of training software: the configuration is a scenario's, with what the log reports of its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.observed_run import ObservedRun, checked_step_s, run_scenario
from scaleproof.validator.reconciliation.jobs import contradictions, log_run, logs
from scaleproof.validator.reconciliation.jobs.log_formats import Fact

# Scenario fields of what logs report; the number of GPUs comes last, since it follows from degrees where these are given.
_FIELDS: Final[Mapping[Fact, str]] = {
    "tensor": "strategy.tensor", "stages": "strategy.stages", "context": "strategy.context",
    "global_batch": "batch.total", "microbatch": "strategy.micro_batch_size", "sequence": "model.sequence", "gpus": "gpus",
}  # fmt: skip


def read(path: Path, reference: str | None, overrides: Sequence[str], notes: ImportNotes) -> ObservedRun:
    """The run of a log. Arguments and errors: see `observations.observed`."""
    if reference is None:
        raise InputError(f"{path}: a log does not describe the model; give a scenario of the job with --scenario")
    log = logs.read(path, None, notes)
    given = {field: log.facts[fact].value for fact, field in _FIELDS.items() if fact in log.facts}
    try:
        scenario = run_scenario(reference, overrides, given)
    except InputError as error:
        raise InputError(f"{path}: the job of the log is no valid scenario with {reference}: {error}") from None
    missing = [field for fact, field in _FIELDS.items() if fact not in log.facts]
    if missing:
        notes.add(f"{path}: the log does not report {', '.join(missing)}; taken from {reference}")
    run = log_run.run_of(log, scenario, notes)
    return ObservedRun(str(path), scenario, checked_step_s(run.step_time_s, str(path)), run.memory_bytes_per_rank)


def step_s(path: Path, scenario: Scenario, notes: ImportNotes) -> float:
    """Seconds of a step in the log of a job that runs a scenario. Raises InputError if it contradicts the scenario."""
    log = logs.read(path, None, notes)
    contradictions.check(log, scenario)
    return log_run.run_of(log, scenario, notes).step_time_s
