"""Proof of `fit`: constants are fitted to a few measured runs on few hosts, and runs on more hosts are predicted with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.proving.cases import ProvingCase
from scaleproof.proof.proving.figures import CaseOutcome, figures
from scaleproof.proof.proving.prove import Measure, prove
from scaleproof.proof.proving.small_to_large import SmallToLarge
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.validator import results
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting import fit_file
from scaleproof.validator.fitting.fit import FittedRuns, fit

_ON: Final = "netlab"


@dataclass(frozen=True)
class FitProof:
    """The fit to the given runs of a draw, and the outcomes of the unseen ones as predicted before and after it."""

    draw: SmallToLarge
    fit: FittedRuns
    before: tuple[CaseOutcome, ...]
    after: tuple[CaseOutcome, ...]

    def figures(self) -> dict[str, Any]:
        """Errors, coverage and ranking of the unseen runs before and after the fit, as data for JSON."""
        parts = {"before": self.before, "after": self.after}
        truth = {"link_rate": self.draw.truth.rate, "device_slowdown": self.draw.truth.slowdown}
        return {"truth": truth, **{name: figures(outcomes) for name, outcomes in parts.items()}}


def prove_fit(
    draw: SmallToLarge,
    folder: Path,
    known: Mapping[str, CaseOutcome],
    measure_case: Measure,
    report: Callable[[CaseOutcome], None],
    patience_s: float = 0.0,
) -> FitProof:
    """Measures the given runs of a draw, fits constants to them, and predicts and measures the unseen runs.

    folder: for the runs, in folders such as `measure` writes. Other arguments: see `prove`. Raises RunError if a given run
    fails.
    """
    truth = draw.truth

    def measure_truth(case: ProvingCase) -> Run:
        return measure_case(truth.applied(case))

    given, unseen = (_KeptCases(folder / part, known, measure_truth, report) for part in ("given", "unseen"))
    cases = draw.given()
    for outcome in given.proved(cases, patience_s):
        if outcome.measured_s is None:
            raise RunError(f"{outcome.name} could not be measured, so that nothing can be fitted: {outcome.failure}")
    fitted = fit([given.place(case).parent for case in cases], None, (), None, None, ImportNotes())
    # predicted before any of them is measured
    cases = list(draw.unseen())
    predictions = [predict(fit_file.with_posterior(case.scenario, fitted.posterior)) for case in cases]
    before = unseen.proved(cases, patience_s)
    after = [_as_predicted(outcome, run) for outcome, run in zip(before, predictions, strict=True)]
    return FitProof(draw, fitted, tuple(before), tuple(after))


def _as_predicted(outcome: CaseOutcome, predicted: Run) -> CaseOutcome:
    """The outcome with another prediction."""
    assert predicted.prediction_interval_s is not None
    low_s, high_s = predicted.prediction_interval_s
    return replace(outcome, predicted_s=predicted.step_time_s, low_s=low_s, high_s=high_s)


@dataclass(frozen=True)
class _KeptCases:
    """Measurements of cases whose runs are kept in a folder, as `measure` keeps them."""

    folder: Path
    known: Mapping[str, CaseOutcome]
    measure_case: Measure
    report: Callable[[CaseOutcome], None]

    def place(self, case: ProvingCase) -> Path:
        """The folder of a case's run."""
        return results.folder_of(self.folder, case.scenario)

    def proved(self, cases: Sequence[ProvingCase], patience_s: float) -> list[CaseOutcome]:
        """Outcomes of cases; see `prove`."""
        by_name = {case.scenario.name: case for case in cases}
        runs: dict[str, Run] = {}
        known = {name: one for name, one in self.known.items() if name in by_name and self._has(by_name[name])}

        def measure(case: ProvingCase) -> Run:
            runs[case.scenario.name] = self.measure_case(case)
            return runs[case.scenario.name]

        def keep(outcome: CaseOutcome) -> None:
            if (run := runs.pop(outcome.name, None)) is not None:
                case = by_name[outcome.name]
                results.keep(results.stamped(run, case.scenario, _ON), case.scenario, self.place(case))
            self.report(outcome)

        return prove(cases, known, measure, keep, patience_s)

    def _has(self, case: ProvingCase) -> bool:
        return results.find(self.place(case), case.scenario, _ON, verify=False) is not None
