"""Reconciliation: predicts and measures the same scenarios, compares both and explains the difference."""

from __future__ import annotations

import functools
import json
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.explanation import Explanation
from scaleproof.simulator.run.files import save
from scaleproof.simulator.run.records import Scaling
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import StepComparison
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.explain import explain

RESULT_FILE: Final = "reconcile.json"


@dataclass(frozen=True)
class ReconciledCase:
    """One scenario on both sides. measured: None if measuring failed; failure then gives the reason."""

    scenario: Scenario
    predicted: Run
    measured: Run | None
    failure: str | None = None

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured step time."""
        if self.measured is None:
            return None
        return (self.predicted.step_time_s - self.measured.step_time_s) / self.measured.step_time_s

    @property
    def disturbed(self) -> str:
        """What disturbed the measurement or the calibration, so that the error does not count; empty if nothing did."""
        return (self.measured.disturbed if self.measured is not None else "") or self.predicted.disturbed

    @property
    def inside(self) -> bool | None:
        """Whether the measured step time is in the 90 % prediction interval; None without an interval or a measurement."""
        interval_s = self.predicted.prediction_interval_s
        if self.measured is None or interval_s is None:
            return None
        return interval_s[0] <= self.measured.step_time_s <= interval_s[1]

    @functools.cached_property
    def explanation(self) -> Explanation | None:
        """Explanation of the difference; None without a measurement."""
        return None if self.measured is None else explain(self.predicted, self.measured)

    @functools.cached_property
    def steps(self) -> StepComparison | None:
        """Comparison of the times of single steps; None without a measurement or a predicted distribution."""
        distribution = self.predicted.step_distribution
        return None if self.measured is None or distribution is None else distribution.compared(self.measured.step_times_s)

    def plain(self) -> dict[str, Any]:
        """The case as plain data for JSON."""
        return {
            "scenario": self.scenario.name,
            "family": self.scenario.strategy.kind,
            "strategy": describe_strategy(self.scenario),
            "ranks": self.scenario.strategy.ranks,
            "compute_ranks": self.predicted.compute_ranks,
            "predicted": self.predicted.to_dict(),
            "measured": self.measured.to_dict() if self.measured else None,
            "error": self.error,
            "inside": self.inside,
            "steps": asdict(self.steps) if self.steps else None,
            "explanation": self.explanation.to_dict() if self.explanation else None,
            "failure": self.failure,
            "disturbed": self.disturbed,
            "folder": f"runs/{self.scenario.name}",
        }


def reconcile(
    scenarios: Sequence[Scenario],
    measure: Callable[[Scenario], Run],
    out: Path | None,
    max_error: float | None,
    report: Callable[[ReconciledCase], None],
) -> list[ReconciledCase]:
    """Predicts and measures each scenario; a failure of one does not end the rest.

    `report` is called with each case when it is done. With `out`, runs and `reconcile.json` are written after each case.
    """
    cases: list[ReconciledCase] = []
    for scenario in scenarios:
        case = _case(scenario, measure)
        cases = with_efficiency([*cases, case])
        if out is not None:
            keep(case, out)
            write(cases, out, max_error)
        report(cases[-1])
    return cases


def _case(scenario: Scenario, measure: Callable[[Scenario], Run]) -> ReconciledCase:
    # the prediction is that of a run of as many steps
    predicted = predict(scenario.model_copy(update={"steps": scenario.steps}))
    try:
        return ReconciledCase(scenario, predicted, measure(scenario))
    except RunError as error:
        return ReconciledCase(scenario, predicted, None, str(error))


def with_efficiency(cases: Sequence[ReconciledCase]) -> list[ReconciledCase]:
    """The cases with the scaling efficiency of measured runs relative to a comparable measured run of one rank, if there is
    one."""
    single = [case for case in cases if case.measured is not None and case.scenario.strategy.ranks == 1]
    result = []
    for case in cases:
        found = {}
        for base in single:
            scaling = _scaling(case.scenario, base.scenario)
            if case.measured is None or base.measured is None or scaling is None:
                continue
            efficiency = case.measured.samples_per_s_per_rank / base.measured.samples_per_s_per_rank
            baseline = f"{base.scenario.name}, {base.measured.samples_per_s:.4g} samples/s measured"
            found[scaling] = Scaling(efficiency, None, baseline)
        if found and case.measured is not None:
            case = replace(case, measured=replace(case.measured, scaling=found))
        result.append(case)
    return result


def _scaling(scenario: Scenario, base: Scenario) -> str | None:
    """Scaling for which `base` is a baseline: strong for the same samples in total, weak for the same samples per rank; None
    for neither."""
    if scenario.model != base.model or scenario.training != base.training:
        return None
    if scenario.total_samples == base.total_samples:
        return "strong"
    ranks = scenario.strategy.training_ranks
    return "weak" if scenario.total_samples == base.total_samples * ranks else None


def measured_folder(out: Path, scenario: Scenario) -> Path:
    """Folder of the measured run of a scenario."""
    return out / "runs" / scenario.name / "measured"


def keep(case: ReconciledCase, out: Path) -> None:
    """Writes the scenario and the runs of a case to their folder in `out`."""
    folder = measured_folder(out, case.scenario)
    dump.keep(case.scenario, folder.parent)
    save(case.predicted, folder.with_name("predicted"))
    if case.measured is not None:
        save(case.measured, folder)


def write(cases: Sequence[ReconciledCase], out: Path, max_error: float | None) -> None:
    """Writes `reconcile.json` with all predictions and measurements, and their environment."""
    plain = {
        "version": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": _environment(cases).get("host", socket.gethostname()),
        "environment": _environment(cases),
        "max_error": max_error,
        "cluster": cases[0].scenario.cluster.name if cases else "",
        "cases": [case.plain() for case in cases],
    }
    write_atomically(out / RESULT_FILE, (json.dumps(plain, indent=2) + "\n").encode())


def _environment(cases: Sequence[ReconciledCase]) -> Mapping[str, str]:
    measured = next((case.measured.provenance for case in cases if case.measured is not None), {})
    if "files" in measured:
        # a job that ran elsewhere
        return measured
    return {"system": f"{platform.system()} {platform.release()}", "python": platform.python_version(), **measured}


def describe_strategy(scenario: Scenario) -> str:
    """A strategy with its sizes as text: 'hybrid, 2 workers × 2 stages'."""
    strategy = scenario.strategy
    parts = [_count(strategy.workers, "worker")]
    if strategy.stages > 1:
        parts.append(_count(strategy.stages, "stage"))
    text = f"{strategy.kind}, {' × '.join(parts)}"
    return text + (f" + {_count(strategy.servers, 'server')}" if strategy.servers else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
