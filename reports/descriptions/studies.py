"""A study as sections: throughput, time, memory and trade-offs of its points, and what could not be predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.charts.studies import bars as study_bars
from scaleproof.reports.charts.studies import curves as study_curves
from scaleproof.reports.charts.studies import maps as study_maps
from scaleproof.reports.descriptions import evidence
from scaleproof.reports.descriptions import study_sentences as sentences
from scaleproof.reports.descriptions.sensitivity import elasticities
from scaleproof.reports.read.fastest_points import MOST_CHOSEN, FastestPoint
from scaleproof.reports.read.ranking import ranking
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.study import MOST_LINES, StudyTable
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.reports.text import NOTHING, duration
from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity
from scaleproof.simulator.common.units import format_bytes, format_interval_s, format_percent, format_short

_MOST_WRONG: Final = 8


def describe(
    study: StudyTable, closely: Sequence[FastestPoint], sensitivity: Sensitivity | None, measured: Sequence[Case] = ()
) -> Description:
    """The description of a study. closely: the fastest points. sensitivity: of the first one. measured: runs drawn over the
    curves."""
    ranks = ranking(study)
    return Description(
        " · ".join(filter(None, (f"study {study.found.name}", study.found.cluster_name))),
        sentences.headline(study, closely, ranks),
        sentences.lede(study, ranks),
        sentences.facts(study, sensitivity),
        list(_sections(study, closely, sensitivity, measured)),
    )


def _sections(
    study: StudyTable, closely: Sequence[FastestPoint], sensitivity: Sensitivity | None, measured: Sequence[Case]
) -> Iterator[Section]:
    yield _throughput(study, measured)
    yield _time(study, closely)
    yield Section("Crossover", "Which is fastest where", charts=lambda: [study_maps.crossover(study)])
    charts = [run_charts.memory(_bars(closely)), study_curves.memory(study)]
    yield Section("Memory", "What fits", charts=lambda: charts)
    if sensitivity:
        yield elasticities(sensitivity, closely[0].line)
    yield Section("Trade-offs", "Time, memory and cost", charts=lambda: study_maps.pareto(study))
    if closely:
        yield evidence.of_scenarios([(closely[0].line, closely[0].scenario)])
    yield _wrong(study)


def _throughput(study: StudyTable, measured: Sequence[Case]) -> Section:
    intro = sentences.counts(study)
    if study.good["line"].nunique() > MOST_LINES:
        intro += f" Figures show the {MOST_LINES} fastest alternatives."
    curves = study_curves.throughput(study, measured), study_curves.efficiency(study)
    charts = study_bars.throughput(study), *curves, study_bars.cost(study)
    heading = "Which is fastest" if len(study.lines) > 1 else "How it scales"
    return Section("Throughput", heading, intro, charts=lambda: charts)


def _time(study: StudyTable, closely: Sequence[FastestPoint]) -> Section:
    intro = "The fastest configuration of each alternative." if len(closely) > 1 else "The fastest configuration."
    intro += f" The first {MOST_CHOSEN} are shown." if len(closely) == MOST_CHOSEN else ""
    charts = [run_charts.breakdown(_bars(closely))]
    tables = [_chosen(study, closely)] if closely else []
    return Section("Time", "Where the time goes", intro, tables=tables, charts=lambda: charts)


def _bars(closely: Sequence[FastestPoint]) -> list[run_charts.Bar]:
    """Bars labelled by what differs: the alternative, and its GPUs if their numbers differ."""
    same = len({one.run.compute_ranks for one in closely}) == 1
    sizes = ["" if same else f"on {sentences.gpus_words(one.run.compute_ranks)}" for one in closely]
    return [run_charts.Bar(one.line, size, one.run) for one, size in zip(closely, sizes, strict=True)]


def _chosen(study: StudyTable, closely: Sequence[FastestPoint]) -> Table:
    """The fastest configurations."""
    runs, points = [one.run for one in closely], [one.point for one in closely]
    efficiency = [(run.efficiency or {}).get("weak") for run in runs]
    columns = [
        Column("configuration", [one.line for one in closely], is_text=True),
        Column("software", [f"{run.strategy}; {run.framework_words}" for run in runs], is_text=True, under="configuration"),
        Column("GPUs", [f"{run.compute_ranks:,}" for run in runs]),
        Column("step time", [duration(run.step_time_s) for run in runs]),
        Column("90 %", [format_interval_s(*(run.prediction_interval_s or (None, None))) for run in runs], under="step time"),
        Column(f"{study.unit}/s", [format_short(point["rate"]) for point in points]),
        Column("per GPU", [format_short(one.point["rate"] / one.run.compute_ranks) for one in closely]),
        Column("efficiency", [NOTHING if share is None else format_percent(share) for share in efficiency]),
        Column("MFU", [format_percent(run.mfu) if run.mfu else NOTHING for run in runs]),
        Column("memory", [format_bytes(run.memory_bytes_per_rank) if run.memory_bytes_per_rank else NOTHING for run in runs]),
    ]
    costs = [point["cost_USD"] for point in points]
    if study.good["cost_USD"].notna().any():
        columns.append(Column(f"USD per million {study.unit}", [f"{cost:.3g}" if cost == cost else NOTHING for cost in costs]))
    return Table(columns, "The fastest configurations", brief=())


def _wrong(study: StudyTable) -> Section:
    """The most frequent errors of points."""
    wrong = list(study.found.wrong.items())
    shown, more = wrong[:_MOST_WRONG], len(wrong) - _MOST_WRONG
    columns = [
        Column("error", [words for words, _ in shown], is_text=True),
        Column("points", [f"{count:,}" for _, count in shown]),
    ]
    below = [f"and {more:,} other reason{'s' if more != 1 else ''}"] if more > 0 else []
    return Section("Errors", "What could not be predicted", tables=[Table(columns, below=below)] if shown else [])
