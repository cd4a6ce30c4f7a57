"""Results as notebooks show them: a short text, a table in HTML, a data frame and figures.

Each class is the simulator's class of the same result, so that all of its numbers are there; it adds pictures only.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import InstanceOf

from scaleproof import html
from scaleproof.reports.descriptions import comparisons as comparison_descriptions
from scaleproof.reports.descriptions import evidence as evidence_descriptions
from scaleproof.reports.descriptions import plans as plan_descriptions
from scaleproof.reports.descriptions import runs as run_descriptions
from scaleproof.reports.sections import Description
from scaleproof.simulator.analysis.compare import RUN_BY_NAME, Comparison
from scaleproof.simulator.analysis.evidence import Evidence
from scaleproof.simulator.analysis.planner.record import PlanRecord, record_of
from scaleproof.simulator.analysis.planner.search import PlanChoice, PlanResult
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.analysis.study.evaluate import throughput_unit
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.common.errors import InputError, naming_extras
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_change,
    format_number,
    format_percent,
    format_time_s,
)
from scaleproof.simulator.common.yaml_file import parse
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scaleproof.reports.charts.chart import Chart
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase

# rows of a table in a notebook
_MOST_ROWS = 10
# failures in a text
_MOST_FAILURES = 3


class RunResult(Run):
    """A predicted or measured run, which notebooks show as a table."""

    @classmethod
    def of(cls, run: Run) -> RunResult:
        """The same run with its views."""
        return cls(**_values(run))

    def _repr_html_(self) -> str:
        return html.described(run_descriptions.describe(self))

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the time per step by cause. Needs matplotlib."""
        from scaleproof.reports.charts.runs.breakdown import Bar, breakdown

        return _figure(breakdown([Bar(self.scenario, "", self)]), "the run has no breakdown")

    @naming_extras()
    def timeline(self) -> Figure:
        """A figure of a typical step, ranks against time. Needs matplotlib."""
        from scaleproof.reports.timeline.timeline import run_figure

        figure = run_figure(self)
        if figure is None:
            raise InputError("the run has no spans of a step; predict or measure it again")
        return figure


class RankedPlan(PlanChoice):
    """A configuration of a plan, with its run."""

    run: RunResult


class RankedPlans(PlanResult):
    """The best configurations of a plan, which notebooks show as a table."""

    best: tuple[RankedPlan, ...]

    @classmethod
    def of(cls, plan: PlanResult) -> RankedPlans:
        """The same plan with its views."""
        best = tuple(RankedPlan(**_values(choice) | {"run": RunResult.of(choice.run)}) for choice in plan.best)
        return cls(**_values(plan) | {"best": best})

    def _repr_html_(self) -> str:
        return html.described(plan_descriptions.describe([record_of(self, version="")]))

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the time per step by cause of the best configurations. Needs matplotlib."""
        from scaleproof.reports.charts.runs.breakdown import Bar, breakdown

        best = enumerate(self.best[:_MOST_ROWS], start=1)
        bars = [Bar(f"{place}.", layout(self.configurations.row(choice.row)), choice.run) for place, choice in best]
        return _figure(breakdown(bars), "the runs have no breakdown")


@dataclass(frozen=True, repr=False)
class PlansBySize:
    """The best plan of each of several numbers of GPUs, which notebooks show as a table. plans: by increasing number; those
    with a `problem` have no configuration that fits."""

    plans: tuple[PlanRecord, ...]

    def __repr__(self) -> str:
        problems = [f"\n{plan.gpus:,} GPUs: no plan: {plan.problem}" for plan in self.plans if plan.problem]
        return "".join([plan_descriptions.describe(self.plans).finding, *problems[:_MOST_FAILURES]])

    def _repr_html_(self) -> str:
        return html.described(plan_descriptions.describe(self.plans))

    @property
    def _planned(self) -> list[PlanRecord]:
        return [plan for plan in self.plans if not plan.problem]

    def to_dict(self) -> dict[str, Any]:
        """The plans as plain data for JSON, in SI units."""
        return {"plans": [plan.to_dict() for plan in self.plans]}

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per number of GPUs that has a plan; column names end in units. Needs pandas."""
        import pandas as pd

        rows = pd.DataFrame(plan.rows[0] for plan in self._planned)
        return rows.rename(columns={"low_s": "step_time_low_s", "high_s": "step_time_high_s"})

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the throughput of the best plans against the number of GPUs. Needs matplotlib."""
        from scaleproof.reports.charts.plan_curves import scaling

        return _figure(scaling(self._planned), "there is one number of GPUs with a plan")

    def scenario(self, gpus: int) -> Scenario:
        """The scenario of the best plan on a number of GPUs. Raises InputError for a number that has none."""
        text = next((plan.scenario_yaml for plan in self._planned if plan.gpus == gpus), None)
        if text is None:
            known = " or ".join(f"{plan.gpus}" for plan in self._planned)
            raise InputError(f"gpus: expected {known}, which have plans, got {gpus!r}")
        return build(parse(text, f"best plan on {gpus} GPUs"), Path())


class ComparisonResult(Comparison):
    """The comparison of two scenarios, which notebooks show as a table."""

    a: Annotated[InstanceOf[RunResult], RUN_BY_NAME]
    b: Annotated[InstanceOf[RunResult], RUN_BY_NAME]

    @classmethod
    def of(cls, comparison: Comparison) -> ComparisonResult:
        """The same comparison with its views."""
        return cls(**dict(comparison) | {"a": RunResult.of(comparison.a), "b": RunResult.of(comparison.b)})

    def _repr_html_(self) -> str:
        return html.described(comparison_descriptions.describe(self))

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the time per step of both by cause. Needs matplotlib."""
        from scaleproof.reports.charts.runs.breakdown import Bar, breakdown

        bars = [Bar(name, run.scenario, run) for name, run in (("A", self.a), ("B", self.b))]
        return _figure(breakdown(bars), "the runs have no breakdown")


class EvidenceResult(Evidence):
    """Published runs that are similar to a scenario, which notebooks show as a table."""

    @classmethod
    def of(cls, evidence: Evidence) -> EvidenceResult:
        """The same evidence with its views."""
        return cls(runs=evidence.runs)

    def _repr_html_(self) -> str:
        return html.described(Description(repr(self), sections=[evidence_descriptions.describe(self)]))

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of predicted against measured step times. Needs matplotlib."""
        from scaleproof.reports.charts.runs.accuracy import evidence

        return _figure(evidence(self.runs), "no published run is similar")


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The points of a study. points: one row per point, with its axes, its results, or its error."""

    study: Study
    points: pd.DataFrame

    def __repr__(self) -> str:
        good, best = self._good, self.best
        left = f"{counted(len(self.points), 'point')}: {len(good):,} fit, "
        left += (
            f"{int(self.points['fits'].eq(False).sum()):,} do not, {int(self.points['error'].notna().sum()):,} have an error"
        )
        if best is None:
            return left
        unit = throughput_unit(good)
        return f"{left}\nfastest: {format_number(best[f'{unit}_per_s'])} {unit}/s at {self.words(int(best['point']))}"

    def _repr_html_(self) -> str:
        shown, unit = self._good.nlargest(_MOST_ROWS, "samples_per_s"), throughput_unit(self._good)
        titles = (*(axis.field for axis in self.study.axes), "step time", f"{unit}/s", "memory per rank")
        columns = ("point", "step_time_s", f"{unit}_per_s", "memory_bytes")
        points = zip(*(shown[name].tolist() for name in columns), strict=True)
        rows = [
            (*self._values(int(point)), format_time_s(step_s), format_number(rate), format_bytes(size_bytes))
            for point, step_s, rate, size_bytes in points
        ]
        return html.page(repr(self).partition("\n")[0], html.table(titles, rows))

    def to_frame(self) -> pd.DataFrame:
        """One row per point; column names end in units."""
        return self.points

    @property
    def best(self) -> pd.Series[Any] | None:
        """The row of the fastest point that fits into memory; None if no point fits."""
        good = self._good
        return good.iloc[int(good["samples_per_s"].argmax())] if len(good) else None

    @property
    def _good(self) -> pd.DataFrame:
        points = self.points
        return points[points["samples_per_s"].notna() & ~points["fits"].eq(False)]

    def scenario(self, point: int) -> Scenario:
        """The scenario of a point. Raises InputError for a point that the study does not have."""
        if isinstance(point, bool) or not 0 <= point < len(self.study):
            raise InputError(f"point: expected a number from 0 to {len(self.study) - 1}, got {point!r}")
        return self.study.scenario(self.study.places_of(point))

    def words(self, point: int) -> str:
        """The values of a point on the axes, such as 'strategy.workers 8'."""
        return self.study.words_of(point)

    def _values(self, point: int) -> list[str]:
        return [axis.text(place) for axis, place in zip(self.study.axes, self.study.places_of(point), strict=True)]

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the throughput along the axes. Needs matplotlib."""
        from scaleproof.reports.charts.studies import bars, curves
        from scaleproof.reports.read.study import studied
        from scaleproof.reports.read.study_folder import StudyFolder

        study = studied(StudyFolder.of(self.study, self.points, self.study.plain()))
        return _figure(curves.throughput(study) or bars.throughput(study), "no point has a result")


@dataclass(frozen=True, repr=False)
class ReconciliationResult:
    """Scenarios that were both predicted and measured."""

    cases: Sequence[ReconciledCase]
    folder: Path | None = None

    def __repr__(self) -> str:
        errors = [abs(case.error) for case in self.cases if case.error is not None]
        measured = f"{len(errors)} of {counted(len(self.cases), 'scenario')} measured"
        median = f"; median error {format_percent(statistics.median(errors))}" if errors else ""
        failures = [f"\n  {case.scenario.name}: {case.failure}" for case in self.cases if case.failure]
        return "".join([measured, median, *failures[:_MOST_FAILURES]])

    def _row(self, case: ReconciledCase) -> tuple[str, ...]:
        predicted = format_time_s(case.predicted.step_time_s)
        if case.measured is None or case.error is None:
            return predicted, "not measured", case.failure or ""
        return predicted, format_time_s(case.measured.step_time_s), format_change(case.error)

    def _repr_html_(self) -> str:
        rows = [(case.scenario.name, *self._row(case)) for case in self.cases]
        return html.page(repr(self).partition("\n")[0], html.table(("scenario", "predicted", "measured", "error"), rows))

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per scenario; times in seconds. Needs pandas."""
        import pandas as pd

        return pd.DataFrame(
            {
                "scenario": case.scenario.name,
                "predicted_s": case.predicted.step_time_s,
                "measured_s": case.measured.step_time_s if case.measured else None,
                "error": case.error,
                "inside_interval": case.inside,
                "failure": case.failure,
            }
            for case in self.cases
        )

    @naming_extras()
    def plot(self) -> Figure:
        """A figure of the time per step by cause, predicted above measured. Needs matplotlib."""
        from scaleproof.reports.charts.runs.breakdown import Bar, breakdown

        runs = [(case.scenario.name, run) for case in self.cases for run in (case.predicted, case.measured) if run]
        return _figure(breakdown([Bar(name, run.origin, run) for name, run in runs]), "nothing was measured")


def _values(result: Any) -> dict[str, Any]:
    """The fields of a result."""
    return {field.name: getattr(result, field.name) for field in fields(result)}


def _figure(chart: Chart | None, otherwise: str) -> Figure:
    """The figure of a chart. Raises InputError with the reason if there is no chart."""
    from scaleproof.reports.charts.still import still_figure

    if chart is None:
        raise InputError(f"there is nothing to plot: {otherwise}")
    return still_figure(chart)
