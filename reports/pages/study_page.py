"""The page of a study."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.charts.sensitivity import sensitivity_chart
from scaleproof.reports.charts.studies import bars as study_bars
from scaleproof.reports.charts.studies import curves as study_curves
from scaleproof.reports.charts.studies import maps as study_maps
from scaleproof.reports.descriptions import evidence
from scaleproof.reports.pages import study_text
from scaleproof.reports.pages.described import page_section
from scaleproof.reports.pages.sections import Page, PageSection, Picture, Sources, pictured
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.fastest_points import MOST_CHOSEN, FastestPoint, chosen, sensitivity_of
from scaleproof.reports.read.ranking import ranking
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.study import MOST_LINES, StudyTable, studied
from scaleproof.reports.read.study_folder import StudyFolder
from scaleproof.reports.sections import slug
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step_chart import step_chart
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario import dump

_MOST_SPANS: Final = 2_500
_MOST_WRONG: Final = 8


def page(found: StudyFolder, measured: Sequence[Case] = ()) -> Page:
    """The page of a study. measured: runs drawn over the curves."""
    notes = list(found.notes)
    study = studied(found)
    closely = chosen(study, notes)
    ranks = ranking(study)
    sensitivity = sensitivity_of(closely[0], notes) if closely else None
    sections = [_scaling(study, measured), _breakdown(study, closely), _crossover(study), _memory(study, closely)]
    if sensitivity:
        chart = sensitivity_chart(sensitivity, closely[0].line)
        intro = "The fastest configuration with 1 % more of each quantity of the cluster, the batch and the servers."
        sections.append(PageSection("sensitivity", "Sensitivity", "What would help most", intro, pictured(chart)))
    sections.append(_pareto(study))
    if closely:
        sections.append(page_section(evidence.of_scenarios([(closely[0].line, closely[0].scenario)])))
    sections += [_timelines(closely), _wrong(found)]
    sheets = {"points.csv": csv_tables.frame_csv(found.points)}
    if closely:
        sheets |= {"breakdown.csv": csv_tables.runs_csv([(one.line, one.run) for one in closely], "breakdown_s")}
        sheets |= {"memory.csv": csv_tables.runs_csv([(one.line, one.run) for one in closely], "memory_bytes")}
    if sensitivity:
        sheets["sensitivity.csv"] = csv_tables.frame_csv(sensitivity.to_frame().reset_index())
    return Page(
        " · ".join(part for part in ("scaleproof", f"study {found.name}", found.cluster_name) if part),
        study_text.headline(study, closely, ranks) + ".",
        study_text.lede(study, ranks),
        study_text.facts(study, sensitivity),
        notes,
        [section for section in sections if section.pictures or section.before or section.after],
        sheets,
        _sources(found, closely),
        is_empty=not len(found.points),
    )


def _scaling(study: StudyTable, measured: Sequence[Case]) -> PageSection:
    intro = study_text.counts(study)
    if study.good["line"].nunique() > MOST_LINES:
        intro += f" Figures show the {MOST_LINES} fastest alternatives."
    curves = study_curves.throughput(study, measured), study_curves.efficiency(study)
    pictures = pictured(study_bars.throughput(study), *curves, study_bars.cost(study))
    heading = "Which is fastest" if len(study.lines) > 1 else "How it scales"
    return PageSection("scaling", "Throughput", heading, intro, pictures)


def _breakdown(study: StudyTable, closely: Sequence[FastestPoint]) -> PageSection:
    intro = "The fastest configuration of each alternative." if len(closely) > 1 else "The fastest configuration."
    intro += f" The first {MOST_CHOSEN} are shown." if len(closely) == MOST_CHOSEN else ""
    pictures = pictured(run_charts.breakdown(_run_bars(closely)))
    data = {"chosen": closely, "unit": study.unit, "has_cost": study.good["cost_USD"].notna().any()}
    return PageSection("time", "Time", "Where the time goes", intro, pictures, "", "chosen.html" if closely else "", data)


def _run_bars(closely: Sequence[FastestPoint]) -> list[run_charts.Bar]:
    """Bars labelled by what differs: the alternative, and its GPUs if their numbers differ."""
    same = len({one.run.compute_ranks for one in closely}) == 1
    return [run_charts.Bar(one.line, "" if same else f"on {_size(one)}", one.run) for one in closely]


def _size(one: FastestPoint) -> str:
    return study_text.gpus_words(one.run.compute_ranks)


def _crossover(study: StudyTable) -> PageSection:
    return PageSection("crossover", "Crossover", "Which is fastest where", "", pictured(study_maps.crossover(study)))


def _memory(study: StudyTable, closely: Sequence[FastestPoint]) -> PageSection:
    pictures = pictured(run_charts.memory(_run_bars(closely)), study_curves.memory(study))
    return PageSection("memory", "Memory", "What fits", "", pictures)


def _pareto(study: StudyTable) -> PageSection:
    return PageSection("pareto", "Trade-offs", "Time, memory and cost", "", pictured(*study_maps.pareto(study)))


def _timelines(closely: Sequence[FastestPoint]) -> PageSection:
    pictures = []
    for number, one in enumerate(closely, start=1):
        heading = f"{one.line} on {_size(one)}"
        chart = step_chart(f"timeline-{number:02d}-{slug(one.line)}", heading, [one.run], _MOST_SPANS)
        case = Case(heading, "", one.run.strategy, one.run.ranks, one.run.compute_ranks, one.run)
        drawn = side_by_side(case)
        if chart is not None and drawn is not None:
            pictures.append(Picture(chart, drawn))
    intro = "A row is a rank, or a class of equivalent ranks; thin bars are overlapped communication."
    return PageSection("timelines", "Timelines", "One step, rank by rank", intro, pictures)


def _wrong(found: StudyFolder) -> PageSection:
    shown = list(found.wrong.items())[:_MOST_WRONG]
    data = {"wrong": shown, "more": len(found.wrong) - len(shown)}
    return PageSection("wrong", "Errors", "What could not be predicted", "", (), "wrong.html" if shown else "", "", data)


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
