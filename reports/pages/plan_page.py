"""The page of a folder of plans, with published runs that are similar to the best plan and tables of all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaleproof.reports.descriptions import evidence
from scaleproof.reports.descriptions.plans import describe
from scaleproof.reports.pages import described
from scaleproof.reports.pages.described import page_section
from scaleproof.reports.pages.sections import Page, PageSection, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.text import spaced
from scaleproof.simulator.analysis.planner.record import PlanRecord
from scaleproof.simulator.analysis.planner.sizes import best_file, read_plans
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario.load import load


def page(folder: Path) -> Page:
    """The page of a folder of plans."""
    plans, notes = read_plans(folder)
    planned = [plan for plan in plans if not plan.problem]
    sheets, sources, evidence = _sheets(planned), _sources(planned), _evidence(folder, planned)
    return described.page(describe(plans), sheets, sources, notes, evidence, is_empty=not planned)


def _evidence(folder: Path, plans: Sequence[PlanRecord]) -> list[PageSection]:
    """Published runs similar to the best plan of the most GPUs; nothing where its scenario cannot be read."""
    if not plans:
        return []
    try:
        return [page_section(evidence.of_scenarios([(f"{plans[-1].gpus:,} GPUs", load(folder / best_file(plans[-1].gpus)))]))]
    except ScaleproofError:
        return []


def _sheets(plans: Sequence[PlanRecord]) -> dict[str, str]:
    """Tables as CSV, in SI units."""
    import pandas as pd

    front = [point.row | {"gpus": plan.gpus} for plan in plans for point in plan.front]
    frames = {"ranking.csv": pd.DataFrame(row for plan in plans for row in plan.rows), "pareto.csv": pd.DataFrame(front)}
    return {name: csv_tables.frame_csv(frame) for name, frame in frames.items()}


def _sources(plans: Sequence[PlanRecord]) -> Sources:
    if not plans:
        return Sources()
    first = plans[0]
    facts = [("Scenario", first.scenario), ("Model", first.model), ("Cluster", first.cluster)]
    facts += origins.frameworks(framework_words(name, plan.framework_is_default) for plan in plans for name in plan.frameworks)
    facts += [("Objective", spaced(first.objective)), ("Planned with", f"scaleproof {first.version}"), origins.made_with()]
    files = {best_file(plan.gpus): plan.scenario_yaml for plan in plans}
    return Sources(facts, files, [f"scaleproof predict {name}" for name in files])
