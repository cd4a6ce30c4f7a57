"""Training on the machine: measured and predicted steps, and whether ranks that share a device train what one process
trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.model import ResNet
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import save
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.gpu_check.families import ALONE, MOST_SHARED, RANKS, SAMPLES, Fields, families
from scaleproof.validator.calibration.gpu_check.ledger import Ledger, NotRunError
from scaleproof.validator.calibration.gpu_check.sizes import Sizes, Training
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.reconciliation.reconcile import ReconciledCase, reconcile
from scaleproof.validator.results import is_right
from scaleproof.validator.train.steps import total_steps

SHARED: Final = "functional check, not accuracy"
_TIMEOUT_S: Final = 60.0
# Memory that is not allocated by torch's allocator.
_OUTSIDE: Final = ("context", "library", "fragmentation")
_LABEL_BYTES: Final = 8
# Cluster of ranks that share devices. Nothing is predicted for it; only its number of devices matters.
_UNKNOWN: Final = Cluster.model_validate(
    {
        "node": {"devices": MOST_SHARED, "link": {"bandwidth": "1 GB/s", "latency": "50 us"}},
        "device": {"name": "shared", "peak": {"fp64": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "1 GB/s"},
    }
)


@dataclass(frozen=True)
class PredictionErrors:
    """Step time in seconds and peak memory in bytes, measured and predicted. uncalibrated_s: predicted with the shipped
    device."""

    measured_s: float
    calibrated_s: float
    uncalibrated_s: float | None
    predicted_bytes: float
    measured_bytes: float | None

    def __str__(self) -> str:
        text = f"measured {format_time_s(self.measured_s)}, predicted {_with_error(self.calibrated_s, self.measured_s)}"
        if self.uncalibrated_s is not None:
            text += f", uncalibrated {_with_error(self.uncalibrated_s, self.measured_s)}"
        if self.measured_bytes is not None:
            share = self.predicted_bytes / self.measured_bytes - 1
            text += f"; memory {format_bytes(self.measured_bytes)}, predicted {share:+.1%}"
        return text

    def plain(self) -> dict[str, float | None]:
        return dict(vars(self))


def reconciled(sizes: Sizes, cluster: Cluster, uncalibrated: Cluster | None, ledger: Ledger, out: Path) -> list[ReconciledCase]:
    """Trains on ranks that have a device each, and saves measurements and predictions for a page in `out`."""
    scenarios = [_scenario(t.name, t, t.batch, cluster, ALONE, sizes.steps) for t in sizes.trainings]
    if cluster.devices > 1:
        own = families(ranks for ranks in sorted({*RANKS, cluster.devices}) if ranks <= cluster.devices)
        scenarios += [
            _scenario(f"{sizes.replicated.name}-{name}", sizes.replicated, SAMPLES, cluster, fields, sizes.steps)
            for name, fields in {"alone": ALONE, **own}.items()
        ]

    def measured(scenario: Scenario) -> Run:
        work = partial(_trained, scenario, uncalibrated, ledger)
        run, _ = ledger.part(f"training {scenario.name}", work, lambda pair: str(pair[1]), lambda pair: pair[1].plain())
        return run

    return reconcile(scenarios, measured, out, None, lambda _: None)


def shared(sizes: Sizes, devices: int, ledger: Ledger, out: Path) -> None:
    """Trains on ranks that share `devices` devices, if these are fewer, and compares the parameters with those of one
    process."""
    for name, fields in families(ranks for ranks in RANKS if ranks > devices).items():
        scenario = _scenario(name, sizes.shared, SAMPLES, _UNKNOWN, fields, sizes.steps)
        work = partial(_verified, scenario, ledger, out)
        ledger.attempt(f"sharing {name}", work, lambda run: f"{SHARED}: {_deviation(run)}", _outcome)


def _trained(scenario: Scenario, uncalibrated: Cluster | None, ledger: Ledger) -> tuple[Run, PredictionErrors]:
    """The measured run and its prediction errors. Raises NotRunError if it is predicted not to fit into memory."""
    forecast = predict(scenario)
    if not forecast.fits:
        needed, there = forecast.memory_bytes_per_rank or 0.0, forecast.capacity_bytes or 0.0
        raise NotRunError(f"not run: needs {format_bytes(needed)} of {format_bytes(there)}")
    run = measure(scenario, "local", _watch(ledger))
    shipped = predict(scenario.model_copy(update={"cluster": uncalibrated})) if uncalibrated else None
    return run, _prediction_errors(scenario, run, forecast, shipped)


def _verified(scenario: Scenario, ledger: Ledger, out: Path) -> Run:
    """The measured run, saved in `out`. Raises RunError if its parameters differ from those of one process."""
    run = measure(scenario, "local", replace(_watch(ledger), verify=True))
    save(_labelled(run, ledger.label), out / "runs" / scenario.name / "measured")
    if not is_right(run):
        raise RunError(f"parameters are {_deviation(run)}; the ranks train something else")
    return run


def _scenario(name: str, training: Training, batch: int, cluster: Cluster, fields: Fields, steps: int) -> Scenario:
    return Scenario.model_validate(
        {
            "name": name,
            "model": training.model,
            "cluster": cluster,
            "strategy": fields["strategy"],
            "batch": {"total": batch},
            "training": {"precision": training.precision, "optimizer": training.optimizer, **fields.get("training", {})},
            "steps": steps,
        }
    )


def _watch(ledger: Ledger) -> MeasureOptions:
    return MeasureOptions(timeout_s=max(1.0, min(_TIMEOUT_S, ledger.left_s)))


def _prediction_errors(scenario: Scenario, measured: Run, forecast: Run, uncalibrated: Run | None) -> PredictionErrors:
    bytes_by_holder = forecast.memory_bytes or {}
    peak_bytes = measured.memory_bytes_per_rank
    return PredictionErrors(
        measured.step_time_s,
        forecast.step_time_s,
        uncalibrated.step_time_s if uncalibrated else None,
        sum(size for holder, size in bytes_by_holder.items() if holder not in _OUTSIDE),
        peak_bytes - _ahead_bytes(scenario) if peak_bytes else None,
    )


def _ahead_bytes(scenario: Scenario) -> float:
    """Bytes of the samples of later steps, which are on the device before the first step begins."""
    model = scenario.model
    if isinstance(model, ResNet):
        sample_bytes = 3 * model.image**2 * ELEMENT_BYTES[scenario.training.precision] + _LABEL_BYTES
    else:
        sample_bytes = 2 * _LABEL_BYTES * getattr(model, "sequence", 1)
    return float(scenario.samples_per_worker * sample_bytes * (total_steps(scenario) - 1))


def _labelled(run: Run, label: str) -> Run:
    """The run with a label in its name."""
    return replace(run, scenario=f"{run.scenario} ({'; '.join(filter(None, (SHARED, label)))})")


def _deviation(run: Run) -> str:
    return f"within {run.verified.deviation if run.verified else math.nan:.1e} of one process's"


def _outcome(run: Run) -> dict[str, Any]:
    verified, provenance = vars(run.verified) if run.verified else {}, dict(run.provenance)
    return {"label": SHARED, "step_time_s": run.step_time_s, "verified": verified, "provenance": provenance}


def _with_error(predicted: float, measured: float) -> str:
    return f"{format_time_s(predicted)} ({predicted / measured - 1:+.1%})"


def errors(cases: Sequence[ReconciledCase]) -> list[float]:
    """Relative errors |predicted − measured| / measured of the measured cases."""
    return [abs(case.error) for case in cases if case.error is not None]
