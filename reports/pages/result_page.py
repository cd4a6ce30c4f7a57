"""The page of reconciled, predicted or measured runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from scaleproof.reports import text
from scaleproof.reports.charts.runs import accuracy as result_charts
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.charts.runs import steps as step_charts
from scaleproof.reports.charts.runs.waterfall import waterfall
from scaleproof.reports.descriptions import evidence, runs
from scaleproof.reports.pages import result_text
from scaleproof.reports.pages.capture_sections import capture_sections
from scaleproof.reports.pages.described import has_content, page_section
from scaleproof.reports.pages.sections import Page, PageSection, Picture, Sources, pictured
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.results import Case, Results
from scaleproof.reports.read.verdict import verdict
from scaleproof.reports.sections import slug
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step_chart import step_chart
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import SHOWN
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# a page with more timelines than this is too heavy to open; every case is in the tables
_MOST_TIMELINES: Final = 32
# of all timelines together, and of one
_MOST_SPANS: Final = 24_000
_MOST_SPANS_EACH: Final = 2_500
# minimum share of the variance of step times from which a source is shown
_MIN_STEP_SHARE: Final = 0.01
# provenance fields that differ between runs; environment fields shown elsewhere; names of others
_OWN: Final = ("date", "scenario_digest")
_SHOWN_ELSEWHERE: Final = ("host", *_OWN)
_FACTS: Final = {"on": "Measured on", "cpu": "CPU"}


def page(found: Results) -> Page:
    """The page of a results folder."""
    cases = found.cases
    eyebrow = " · ".join(
        part
        for part in ("scaleproof", found.cluster, found.host and f"measured on {found.host}", text.when(found.created))
        if part
    )
    sheets = {
        "cases.csv": csv_tables.cases_csv(cases),
        "phases.csv": csv_tables.phases_csv(cases),
        "breakdown.csv": csv_tables.breakdown_csv(cases),
    }
    return Page(
        eyebrow,
        result_text.headline(found) + ".",
        "",
        result_text.facts(found),
        found.notes,
        sections(found),
        sheets,
        sources(found),
        is_empty=not any(case.runs for case in cases),
    )


def sections(found: Results) -> list[PageSection]:
    """The sections with data."""
    cases = found.cases
    if not cases:
        return []
    all_runs = [run for case in cases for run in case.runs]
    made = _of_run(all_runs[0]) if len(all_runs) == 1 else _of_runs(found)
    made += _steps(cases)
    made += _captured(cases)
    made += _evidence(cases)
    timelines = _timelines(cases)
    if timelines:
        intro = "A typical step of each run. A row is a rank; thin bars are overlapped communication."
        intro += f" The first {_MOST_TIMELINES} scenarios are shown." if len(cases) > _MOST_TIMELINES else ""
        made.append(PageSection("timelines", "Timelines", "One step, rank by rank", intro, timelines))
    return made


def _of_run(run: Run) -> list[PageSection]:
    """The sections of a single run."""
    return [made for made in map(page_section, runs.describe(run).sections) if has_content(made)]


def _of_runs(found: Results) -> list[PageSection]:
    """The sections that compare several runs."""
    bars = result_charts.bars(found.cases)
    memory = pictured(run_charts.memory([bar for bar in bars if bar.run.origin == "predicted"]))
    fits = [PageSection("memory", "Memory", "What fits", pictures=memory)] if memory else []
    return [*_overview(found), *_scaling(found.cases), _breakdown(found.cases, bars), *fits]


def _overview(found: Results) -> list[PageSection]:
    """Predicted against measured, or the runs where nothing was compared; a single run's figures are above."""
    if found.compared or any(case.failure for case in found.cases):
        return [_accuracy(found)]
    shown = [run for case in found.cases for run in case.runs]
    data = {"runs": shown, "units_per_step": runs.units_per_step}
    return [PageSection("runs", "Runs", "Runs", before="runs.html", data=data)] if len(shown) > 1 else []


def _accuracy(found: Results) -> PageSection:
    data = {
        "cases": found.cases,
        "verdicts": [verdict(case, found.max_error) for case in found.cases],
        "ranks_text": result_text.ranks_text,
        "step_range_s": csv_tables.step_range_s,
    }
    intro = (
        "Mean step time; below predictions their 90 % interval, below measurements the range of the middle 80 % of steps. "
        "Error: (predicted − measured) / measured."
    )
    pictures = pictured(result_charts.accuracy(found.cases), waterfall(found.cases), result_charts.errors(found.cases))
    return PageSection("accuracy", "Accuracy", "Predicted against measured", intro, pictures, before="cases.html", data=data)


def _scaling(cases: Sequence[Case]) -> list[PageSection]:
    """Scaling of several runs; the figures of a single one are above."""
    if len(cases) < 2:
        return []
    named = [f"{kind}: {name}" for case in cases for run in case.runs for kind, name in (run.baseline or {}).items()]
    data = {"cases": cases, "baselines": list(dict.fromkeys(named))}
    pictures = pictured(result_charts.scaling(cases))
    return [PageSection("scaling", "Scaling", "How it scales", "", pictures, after="scaling.html", data=data)]


def _breakdown(cases: Sequence[Case], bars: Sequence[run_charts.Bar]) -> PageSection:
    phases = [
        phase.label for phase in Phase if any(run.phase_s.get(phase.label, 0.0) > 0 for case in cases for run in case.runs)
    ]
    data = {"cases": cases, "phases": phases, "phase_rows": _phase_rows}
    intro = "The first scenarios are shown; the table has all." if len(bars) > run_charts.MOST_BARS else ""
    pictures = pictured(run_charts.breakdown(bars))
    return PageSection("time", "Time", "Where the time goes", intro, pictures, after="phases.html" if phases else "", data=data)


def _phase_rows(case: Case, phases: Sequence[str]) -> list[tuple[str, list[float | None]]]:
    """Rows of the phase table for one case: seconds in each phase and per step, and the difference if both sides are known."""
    rows: list[tuple[str, list[float | None]]] = [(run.origin, _phase_row(run, phases)) for run in case.runs]
    if len(rows) == 2:
        predicted, measured = (values for _, values in rows)
        pairs = zip(predicted, measured, strict=True)
        rows.append(("difference", [None if p is None or m is None else p - m for p, m in pairs]))
    return rows


def _phase_row(run: Run, phases: Sequence[str]) -> list[float | None]:
    return [*(run.phase_s.get(phase) or None for phase in phases), run.step_time_s]


def _steps(cases: Sequence[Case]) -> list[PageSection]:
    """The distribution of the times of single steps; nothing without a predicted one."""
    shown = [case for case in cases if case.predicted and case.predicted.step_distribution]
    if not shown:
        return []
    data = {"cases": shown, "names": list(SHOWN), "step_rows": _step_rows}
    intro = "Percentiles of the times of single steps within a run. The step time above is that of a typical step."
    pictures = pictured(step_charts.steps(shown))
    return [PageSection("steps", "Steps", "How much single steps vary", intro, pictures, after="steps.html", data=data)]


def _step_rows(case: Case) -> list[tuple[str, list[float | None], str]]:
    """Rows of the table of single steps for one case: side, seconds at percentiles, and sources of variation or distances."""
    assert case.predicted is not None
    found = case.predicted.step_distribution
    assert found is not None
    causes = ", ".join(f"{name} {text.percent(share)}" for name, share in found.shares.items() if share >= _MIN_STEP_SHARE)
    rows: list[tuple[str, list[float | None], str]] = [("predicted", list(found.quantiles_s.values()), causes)]
    compared = found.compared(case.measured.step_times_s) if case.measured else None
    if compared is not None:
        words = f"KS distance {compared.distance:.2f}, of shapes {compared.distance_of_shapes:.2f}"
        rows.append(("measured", list(compared.measured_s.values()), f"{words}, {compared.steps} steps"))
    return rows


def _captured(cases: Sequence[Case]) -> list[PageSection]:
    """Streams and memory over the step of a captured script; nothing where several scenarios are compared."""
    scenario = _scenario(cases[0]) if len(cases) == 1 and cases[0].predicted else None
    return capture_sections(scenario) if scenario is not None and isinstance(scenario.strategy, CapturedStrategy) else []


def _evidence(cases: Sequence[Case]) -> list[PageSection]:
    """Published runs similar to the predictions; nothing where no scenario was kept."""
    scenarios = [(case.scenario, _scenario(case)) for case in cases if case.predicted]
    known = [(name, scenario) for name, scenario in scenarios if scenario is not None]
    return [page_section(evidence.of_scenarios(known))] if known else []


def _scenario(case: Case) -> Scenario | None:
    try:
        return load(_read(case.scenario_yaml))
    except ScaleproofError:
        return None


def _timelines(cases: Sequence[Case]) -> list[Picture]:
    """Timelines of both sides of each case; on paper, the largest difference is marked."""
    shown = cases[:_MOST_TIMELINES]
    most = min(_MOST_SPANS_EACH, _MOST_SPANS // max(1, len(shown)))
    pictures = []
    for number, case in enumerate(shown, start=1):
        chart = step_chart(f"timeline-{number:02d}-{slug(case.scenario)}", case.scenario, case.runs, most)
        drawn = side_by_side(case)
        if chart is not None and drawn is not None:
            pictures.append(Picture(chart, drawn, case.explanation.sentences if case.explanation else ()))
    return pictures


def sources(found: Results) -> Sources:
    """Inputs, versions and sources, sufficient to reproduce the results."""
    # predictions have no host and no date
    unknown = "not recorded" if any(case.measured for case in found.cases) else ""
    facts = [
        ("Cluster", found.cluster or unknown),
        *origins.frameworks(run.framework_words for case in found.cases for run in case.runs),
        ("Host", found.host or unknown),
        ("Date", text.when(found.created) or unknown),
        *([("Allowed error", text.percent(found.max_error))] if found.max_error is not None else []),
        *(
            (_FACTS.get(name, name.capitalize()), value)
            for name, value in found.environment.items()
            if name not in _SHOWN_ELSEWHERE
        ),
    ]
    parts = [(case.scenario, "; ".join([case.strategy, *_unusual(case, found)])) for case in found.cases]
    files = _files(found.cases)
    cited = dict.fromkeys(one for text in files.values() for one in origins.cited(_read(text)))
    known = [(name, value) for name, value in facts if value]
    return Sources([*known, origins.made_with()], files, _commands(found, files), parts, list(cited))


def _unusual(case: Case, found: Results) -> Iterator[str]:
    """Provenance of a case's runs that differs from the common environment."""
    for run in case.runs:
        differences = [
            f"{name} {value}"
            for name, value in run.provenance.items()
            if name not in _OWN and found.environment.get(name) != value
        ]
        if differences:
            yield f"{run.origin}: {', '.join(differences)}"


def _files(cases: Sequence[Case]) -> dict[str, str]:
    """Scenario files by file name."""
    files: dict[str, str] = {}
    for case in cases:
        if case.scenario_yaml:
            name = slug(case.scenario)
            files[f"{name}.yaml" if f"{name}.yaml" not in files else f"{name}-{len(files)}.yaml"] = case.scenario_yaml
    return files


def _read(text: str) -> Any:
    try:
        return yaml_file.parse(text, dump.FILE).data
    except ScaleproofError:
        return None


def _commands(found: Results, files: Iterable[str]) -> list[str]:
    """Commands that reproduce the page in the folder of the files."""
    names = list(files)
    if not names:
        return []
    measured = [run for case in found.cases for run in case.runs if run.origin == "measured"]
    if not measured and not any(case.failure for case in found.cases):
        places = ["again"] if len(names) == 1 else [f"again/{number}" for number in range(1, len(names) + 1)]
        predicted = [f"scaleproof predict {name} --out {place}" for name, place in zip(names, places, strict=True)]
        return [*predicted, *(f"scaleproof report {place}" for place in places)]
    on = next((run.provenance["on"] for run in measured if "on" in run.provenance), "local")
    verb = "reconcile" if any(case.predicted for case in found.cases) else "measure"
    allowed = f" --max-error {found.max_error:.6g}" if found.max_error is not None and verb == "reconcile" else ""
    # a job that ran elsewhere was read from its files
    where = next((run.provenance["files"] for run in measured if "files" in run.provenance), f"--on {shlex.quote(on)}")
    return [f"scaleproof {verb} {' '.join(names)} {where}{allowed} --out again", "scaleproof report again"]
