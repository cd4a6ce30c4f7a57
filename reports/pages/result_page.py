"""The page of reconciled, predicted or measured runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from scaleproof.reports import text
from scaleproof.reports.descriptions import results as descriptions
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, PageSection, Picture, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.results import Case, Results
from scaleproof.reports.sections import slug
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step_chart import step_chart
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.scenario import dump

# a page with more timelines than this is too heavy to open; every case is in the tables
_MOST_TIMELINES: Final = 32
# of all timelines together, and of one
_MOST_SPANS: Final = 24_000
_MOST_SPANS_EACH: Final = 2_500
# provenance fields that differ between runs; environment fields shown elsewhere; names of others
_OWN: Final = ("date", "scenario_digest")
_SHOWN_ELSEWHERE: Final = ("host", *_OWN)
_FACTS: Final = {"on": "Measured on", "cpu": "CPU"}


def page(found: Results) -> Page:
    """The page of a results folder."""
    cases = found.cases
    sheets = {
        "cases.csv": csv_tables.cases_csv(cases),
        "phases.csv": csv_tables.phases_csv(cases),
        "breakdown.csv": csv_tables.breakdown_csv(cases),
    }
    is_empty = not any(case.runs for case in cases)
    return described.page(descriptions.describe(found), sheets, sources(found), found.notes, _further(cases), is_empty)


def sections(found: Results) -> list[PageSection]:
    """The sections with data."""
    return [*described.page_sections(descriptions.sections(found)), *_further(found.cases)]


def _further(cases: Sequence[Case]) -> list[PageSection]:
    """The timelines, which only pages have."""
    timelines = _timelines(cases)
    intro = "A typical step of each run. A row is a rank; thin bars are overlapped communication."
    intro += f" The first {_MOST_TIMELINES} scenarios are shown." if len(cases) > _MOST_TIMELINES else ""
    return [PageSection("timelines", "Timelines", "One step, rank by rank", intro, timelines)] if timelines else []


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
