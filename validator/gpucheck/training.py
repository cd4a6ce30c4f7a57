"""Training: real steps beside forecast ones, and of ranks that share a device whether they train what one process trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from simulator.cluster import Cluster
from simulator.errors import RunError
from simulator.model import ResNet
from simulator.predict import predict
from simulator.run import Run, save
from simulator.scenario import Scenario
from simulator.units import format_bytes, format_time_s
from validator.gpucheck.ledger import Ledger, NotRunError
from validator.gpucheck.sizes import Sizes, Training
from validator.measure import Watch, measure
from validator.reconcile import Case, reconcile
from validator.steps import total_steps

SHARED: Final = "functional check, not accuracy"
# Samples of a step over all ranks: workers of 1, 2, 3, 4, 6 or 8 have as many each.
_SAMPLES: Final = 24
_TIMEOUT_S: Final = 60.0
# What torch's allocator does not hand out.
_OUTSIDE: Final = ("context", "library", "fragmentation")
_LABEL_BYTES: Final = 8
# Ranks that share a device need a cluster to be valid, and nothing of it is used.
_HOST: Final = {"bandwidth": "1 GB/s", "latency": "50 us"}
_MOST_SHARED: Final = 4


@dataclass(frozen=True)
class Forecasts:
    """Seconds of a step and bytes at its fullest moment, forecast beside measured. uncalibrated: by the shipped device."""

    measured_s: float
    calibrated_s: float
    uncalibrated_s: float | None
    predicted_bytes: float
    measured_bytes: float | None

    def __str__(self) -> str:
        text = f"measured {format_time_s(self.measured_s)}, predicted {_beside(self.calibrated_s, self.measured_s)}"
        if self.uncalibrated_s is not None:
            text += f", uncalibrated {_beside(self.uncalibrated_s, self.measured_s)}"
        if self.measured_bytes is not None:
            share = self.predicted_bytes / self.measured_bytes - 1
            text += f"; memory {format_bytes(self.measured_bytes)}, predicted {share:+.1%}"
        return text

    def plain(self) -> dict[str, float | None]:
        return dict(vars(self))


def strategies(devices: int) -> dict[str, dict[str, Any]]:
    """The families over 2, 4 and `devices` ranks, by name."""
    found: dict[str, dict[str, Any]] = {}
    for ranks in sorted({2, 4, devices} - {1}):
        if _SAMPLES % ranks:
            continue
        found[f"ring-{ranks}"] = {"kind": "data_parallel", "workers": ranks}
        found[f"servers-{ranks}"] = {"kind": "parameter_server", "workers": ranks - 1, "servers": 1}
        if ranks <= _MOST_SHARED:
            schedule = "gpipe" if ranks == 2 else "1f1b"
            found[f"pipeline-{ranks}"] = {"kind": "pipeline", "stages": ranks, "microbatches": 6, "schedule": schedule}
        if ranks > 2:
            found[f"hybrid-{ranks}"] = {"kind": "hybrid", "workers": ranks // 2, "stages": 2, "microbatches": 2}
    return {name: strategy for name, strategy in found.items() if _SAMPLES % strategy.get("workers", 1) == 0}


def reconciled(sizes: Sizes, cluster: Cluster, uncalibrated: Cluster | None, ledger: Ledger, out: Path) -> list[Case]:
    """Trains what devices have to themselves, and keeps it beside its forecasts for a page in `out`."""
    scenarios = [
        _scenario(t.name, t, t.batch, cluster, {"kind": "data_parallel", "workers": 1}, sizes.steps) for t in sizes.trainings
    ]
    if cluster.devices > 1:
        own = {"alone": {"kind": "data_parallel", "workers": 1}} | strategies(cluster.devices)
        scenarios += [
            _scenario(f"{sizes.replicated.name}-{name}", sizes.replicated, _SAMPLES, cluster, strategy, sizes.steps)
            for name, strategy in own.items()
            if _ranks(strategy) <= cluster.devices
        ]

    def measured(scenario: Scenario) -> Run:
        kept: list[Run] = []

        def work() -> Forecasts:
            forecast = predict(scenario)
            if not forecast.fits:
                needed, there = (
                    format_bytes(forecast.memory_bytes_per_rank or 0.0),
                    format_bytes(forecast.capacity_bytes or 0.0),
                )
                raise NotRunError(f"not run: needs {needed} of {there}")
            kept.append(measure(scenario, "local", _watch(ledger)))
            shipped = predict(scenario.model_copy(update={"cluster": uncalibrated})).step_time_s if uncalibrated else None
            return _forecasts(scenario, kept[0], forecast, shipped)

        ledger.part(f"training {scenario.name}", work, str, Forecasts.plain)
        return kept[0]

    return reconcile(scenarios, measured, out, None, lambda _: None)


def shared(sizes: Sizes, cluster: Cluster, ledger: Ledger, out: Path) -> None:
    """Trains on ranks that share devices, where there are fewer, and compares their parameters with one process's."""
    node = {"devices": _MOST_SHARED, "link": _HOST}
    peaks = {"peak_flops": {**cluster.device.peak_flops, sizes.shared.precision: 1e12}}
    device = cluster.device.model_copy(update=peaks)
    roomy = Cluster.model_validate({"name": cluster.name, "node": node, "device": device})
    for name, strategy in strategies(_MOST_SHARED).items():
        if _ranks(strategy) <= cluster.devices:
            continue
        scenario = _scenario(name, sizes.shared, _SAMPLES, roomy, strategy, sizes.steps)

        def work(scenario: Scenario = scenario) -> Run:
            run = measure(scenario, "local", replace(_watch(ledger), verify=True))
            save(_labelled(run, ledger.label), out / "runs" / scenario.name / "measured")
            verdict = run.verified or {}
            if not verdict.get("deviation", 1.0) <= verdict.get("tolerance", 0.0):
                raise RunError(f"parameters are {_agreement(verdict)}; it trains something else")
            return run

        ledger.attempt(f"sharing {name}", work, lambda run: f"{SHARED}: {_agreement(run.verified or {})}", _outcome)


def _scenario(name: str, training: Training, batch: int, cluster: Cluster, strategy: Mapping[str, Any], steps: int) -> Scenario:
    return Scenario.model_validate(
        {
            "name": name,
            "model": training.model,
            "cluster": cluster,
            "strategy": strategy,
            "batch": {"total": batch},
            "training": {"precision": training.precision, "optimizer": training.optimizer},
            "steps": steps,
        }
    )


def _ranks(strategy: Mapping[str, Any]) -> int:
    return int(strategy.get("workers", 1) * strategy.get("stages", 1) + strategy.get("servers", 0))


def _watch(ledger: Ledger) -> Watch:
    return Watch(timeout_s=max(1.0, min(_TIMEOUT_S, ledger.left_s)))


def _forecasts(scenario: Scenario, measured: Run, forecast: Run, uncalibrated_s: float | None) -> Forecasts:
    held = forecast.memory_bytes or {}
    peak_bytes = measured.provenance.get("peak_memory_bytes")
    return Forecasts(
        measured.step_time_s,
        forecast.step_time_s,
        uncalibrated_s,
        sum(size for holder, size in held.items() if holder not in _OUTSIDE),
        float(peak_bytes) - _ahead_bytes(scenario) if peak_bytes else None,
    )


def _ahead_bytes(scenario: Scenario) -> float:
    """Of the samples of other steps, which are on the device before the first begins."""
    model = scenario.model
    if isinstance(model, ResNet):
        element_bytes = {"fp64": 8, "fp32": 4, "bf16": 2}[scenario.training.precision]
        sample_bytes = 3 * model.image**2 * element_bytes + _LABEL_BYTES
    else:
        sample_bytes = 2 * _LABEL_BYTES * getattr(model, "sequence", 1)
    return float(scenario.samples_per_worker * sample_bytes * (total_steps(scenario) - 1))


def _labelled(run: Run, label: str) -> Run:
    """The run under a name that says what it is worth."""
    return replace(run, scenario=f"{run.scenario} ({'; '.join(filter(None, (SHARED, label)))})")


def _agreement(verdict: Mapping[str, Any]) -> str:
    return f"within {verdict.get('deviation', float('nan')):.1e} of one process's"


def _outcome(run: Run) -> dict[str, Any]:
    return {
        "label": SHARED,
        "step_time_s": run.step_time_s,
        "verified": dict(run.verified or {}),
        "provenance": dict(run.provenance),
    }


def _beside(predicted: float, measured: float) -> str:
    return f"{format_time_s(predicted)} ({predicted / measured - 1:+.1%})"


def errors(cases: Sequence[Case]) -> list[float]:
    """Of those that were measured, |predicted − measured| / measured."""
    return [abs(case.error) for case in cases if case.error is not None]
