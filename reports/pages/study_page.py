"""The page of a study."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.descriptions import studies
from scaleproof.reports.descriptions.study_sentences import gpus_words
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, PageSection, Picture, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.fastest_points import FastestPoint, chosen, sensitivity_of
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.study import studied
from scaleproof.reports.read.study_folder import StudyFolder
from scaleproof.reports.sections import slug
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step_chart import step_chart
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario import dump

_MOST_SPANS: Final = 2_500


def page(found: StudyFolder, measured: Sequence[Case] = ()) -> Page:
    """The page of a study. measured: runs drawn over the curves."""
    notes = list(found.notes)
    study = studied(found)
    closely = chosen(study, notes)
    sensitivity = sensitivity_of(closely[0], notes) if closely else None
    sheets = {"points.csv": csv_tables.frame_csv(found.points)}
    if closely:
        sheets |= {"breakdown.csv": csv_tables.runs_csv([(one.line, one.run) for one in closely], "breakdown_s")}
        sheets |= {"memory.csv": csv_tables.runs_csv([(one.line, one.run) for one in closely], "memory_bytes")}
    if sensitivity:
        sheets["sensitivity.csv"] = csv_tables.frame_csv(sensitivity.to_frame().reset_index())
    description = studies.describe(study, closely, sensitivity, measured)
    sources, timelines = _sources(found, closely), _timelines(closely)
    return described.page(description, sheets, sources, notes, timelines, is_empty=not len(found.points))


def _timelines(closely: Sequence[FastestPoint]) -> list[PageSection]:
    pictures = []
    for number, one in enumerate(closely, start=1):
        heading = f"{one.line} on {gpus_words(one.run.compute_ranks)}"
        chart = step_chart(f"timeline-{number:02d}-{slug(one.line)}", heading, [one.run], _MOST_SPANS)
        case = Case(heading, "", one.run.strategy, one.run.ranks, one.run.compute_ranks, one.run)
        drawn = side_by_side(case)
        if chart is not None and drawn is not None:
            pictures.append(Picture(chart, drawn))
    intro = "A row is a rank, or a class of equivalent ranks; thin bars are overlapped communication."
    return [PageSection("timelines", "Timelines", "One step, rank by rank", intro, pictures)] if pictures else []


def _frameworks(found: StudyFolder) -> Iterator[str]:
    """Yields 'pytorch-ddp, by default' for each framework of the points."""
    frameworks = found.points[["framework", "framework_is_default"]].dropna().drop_duplicates()
    yield from (framework_words(name, bool(is_default)) for name, is_default in frameworks.itertuples(index=False, name=None))


def _sources(found: StudyFolder, closely: Sequence[FastestPoint]) -> Sources:
    facts = [("Study", found.name), ("Model", found.model_name), ("Cluster", found.cluster_name or "not recorded")]
    facts += origins.frameworks(_frameworks(found))
    facts += [("Predicted with", f"scaleproof {found.definition['version']}")] if "version" in found.definition else []
    facts.append(origins.made_with())
    files = {"study.yaml": found.study_yaml(), dump.FILE: found.scenario_yaml()}
    commands = []
    if found.study is not None:
        intervals = " --intervals" if found.definition.get("intervals") else ""
        commands = [f"scaleproof sweep study.yaml{intervals} --out again", "scaleproof report again"]
    for one in closely:
        sets = " ".join(f"--set {shlex.quote(text)}" for text in one.sets)
        commands.append(f"scaleproof predict scenario.yaml {sets}")
    cited = list(dict.fromkeys(origins.cited(found.definition.get("scenario"))))
    return Sources(facts, {name: text for name, text in files.items() if text}, commands, (), cited)
