"""Reconciled, predicted and measured runs as sections: errors, scaling, times of phases and of single steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.runs import accuracy as result_charts
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.charts.runs import steps as step_charts
from scaleproof.reports.charts.runs.waterfall import waterfall
from scaleproof.reports.descriptions import captures, evidence, runs
from scaleproof.reports.descriptions import result_sentences as sentences
from scaleproof.reports.read.csv_tables import step_range_s
from scaleproof.reports.read.results import Case, Results
from scaleproof.reports.read.verdict import verdict
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.reports.text import (
    NOTHING,
    duration,
    family_name,
    milliseconds,
    percent,
    rate,
    signed_milliseconds,
    signed_percent,
    when,
)
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import format_bytes, format_interval_s, format_short
from scaleproof.simulator.common.yaml_file import parse
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import SHOWN
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# minimum share of the variance of step times from which a source is shown
_MIN_STEP_SHARE: Final = 0.01


def describe(found: Results) -> Description:
    """The description of a results folder."""
    title = (found.cluster, found.host and f"measured on {found.host}", when(found.created))
    return Description(
        " · ".join(filter(None, title)) or "runs",
        sentences.headline(found),
        figures=sentences.facts(found),
        sections=list(sections(found)),
    )


def sections(found: Results) -> Iterator[Section]:
    """Yields the sections of a single run, or those that compare several."""
    cases = found.cases
    all_runs = [run for case in cases for run in case.runs]
    if cases and len(all_runs) == 1:
        yield from runs.describe(all_runs[0]).sections
    elif cases:
        yield _overview(found, all_runs)
        yield from _scaling(cases)
        yield from _breakdown(cases)
    shown = [case for case in cases if case.predicted and case.predicted.step_distribution]
    if shown:
        yield _steps(shown)
    scenarios = [(case.scenario, _scenario(case)) for case in cases if case.predicted]
    if len(cases) == 1 and scenarios and (own := scenarios[0][1]) and isinstance(own.strategy, CapturedStrategy):
        yield from captures.sections(own)
    if known := [(name, scenario) for name, scenario in scenarios if scenario is not None]:
        yield evidence.of_scenarios(known)


def _scenario(case: Case) -> Scenario | None:
    """The scenario of a case; None where it was not kept or cannot be read."""
    try:
        return load(parse(case.scenario_yaml, dump.FILE).data)
    except ScaleproofError:
        return None


def _overview(found: Results, all_runs: Sequence[Run]) -> Section:
    """Predicted against measured, or the runs where nothing was compared."""
    cases = found.cases
    if not found.compared and not any(case.failure for case in cases):
        return Section("Runs", "Runs", tables=[_runs(all_runs)] if all_runs else [])
    intro = (
        "Mean step time; below predictions their 90 % interval, below measurements the range of the middle 80 % of steps. "
        "Error: (predicted − measured) / measured."
    )
    charts = [result_charts.accuracy(cases), waterfall(cases), result_charts.errors(cases)]
    return Section("Accuracy", "Predicted against measured", intro, tables=[_cases(found)], charts=lambda: charts)


def _runs(all_runs: Sequence[Run]) -> Table:
    units = list(map(runs.units_per_step, all_runs))
    rates = [per_step / run.step_time_s for run, (per_step, _) in zip(all_runs, units, strict=True)]
    parts = [(run.origin, run.strategy, run.framework and run.framework_words) for run in all_runs]
    columns = [
        Column("scenario", [run.scenario for run in all_runs], is_text=True),
        Column("origin", ["; ".join(filter(None, words)) for words in parts], is_text=True, under="scenario"),
        Column("GPUs", [f"{run.compute_ranks:,}" for run in all_runs]),
        Column("step time", [duration(run.step_time_s) for run in all_runs]),
        Column("90 %", [_between(run.prediction_interval_s) for run in all_runs], under="step time"),
        Column("throughput", [f"{format_short(one)} {unit}/s" for one, (_, unit) in zip(rates, units, strict=True)]),
        Column("MFU", [percent(run.mfu) if run.mfu else NOTHING for run in all_runs]),
        Column("memory per GPU", [_bytes(run.memory_bytes_per_rank) for run in all_runs]),
    ]
    return Table(columns)


def _cases(found: Results) -> Table:
    """Every scenario with its verdict."""
    cases = found.cases
    verdicts = [verdict(case, found.max_error) for case in cases]
    predicted, measured = [case.predicted for case in cases], [case.measured for case in cases]
    words = [
        "; ".join(filter(None, (case.strategy or family_name(case.family), run.framework_words if run else "")))
        for case, run in zip(cases, predicted, strict=True)
    ]
    intervals = [_between(run.prediction_interval_s) if run else "" for run in predicted]
    ranges = [_between(step_range_s(run)) if run else "" for run in measured]
    failures = [f"{case.scenario}: {case.failure}" for case in cases if case.failure]
    columns = [
        Column("scenario", [case.scenario for case in cases], is_text=True),
        Column("strategy", words, is_text=True, under="scenario"),
        Column("ranks", list(map(sentences.ranks_text, cases))),
        Column("predicted", [duration(run.step_time_s if run else None) for run in predicted]),
        Column("90 %", intervals, under="predicted"),
        Column("measured", [duration(run.step_time_s if run else None) for run in measured]),
        Column("80 %", ranges, under="measured"),
        Column("error", [signed_percent(case.error) for case in cases]),
        Column("verdict", [f"{one.symbol} {one.words}" for one in verdicts], True, grades=[one.grade for one in verdicts]),
    ]
    return Table(columns, below=failures)


def _between(ends_s: tuple[float, float] | None) -> str:
    return format_interval_s(*(ends_s or (None, None)))


def _bytes(count: float | None) -> str:
    return format_bytes(count) if count else NOTHING


def _scaling(cases: Sequence[Case]) -> Iterator[Section]:
    """Yields the scaling of several scenarios, with the columns of which something is known."""
    if len(cases) < 2:
        return
    columns = [Column("scenario", [case.scenario for case in cases], is_text=True)]
    for side in ("predicted", "measured"):
        all_runs: list[Run | None] = [getattr(case, side) for case in cases]
        efficiencies = [run.efficiency or {} if run else {} for run in all_runs]
        columns.append(Column(f"samples/s, {side}", [rate(run.samples_per_s if run else None) for run in all_runs]))
        for kind in ("weak", "strong"):
            shares = [percent(one[kind]) if kind in one else NOTHING for one in efficiencies]
            columns.append(Column(f"{kind} efficiency, {side}", shares))
    known = [column for column in columns if set(column.cells) != {NOTHING}]
    named = dict.fromkeys(
        f"{kind}: {name}" for case in cases for run in case.runs for kind, name in (run.baseline or {}).items()
    )
    baselines = f"efficiency is samples/s per training rank, relative to the baseline: {'; '.join(named)}"
    without = "efficiency is given only for runs that were compared with a baseline"
    table = Table(known, brief=(), below=[baselines if named else without])
    yield Section("Scaling", "How it scales", tables=[table], charts=lambda: [result_charts.scaling(cases)])


def _breakdown(cases: Sequence[Case]) -> Iterator[Section]:
    """Yields time by cause and phase, and memory."""
    bars = result_charts.bars(cases)
    intro = "The first scenarios are shown; the table has all." if len(bars) > run_charts.MOST_BARS else ""
    tables = [_phases(cases)] if any(run.phase_s for case in cases for run in case.runs) else []
    yield Section("Time", "Where the time goes", intro, tables=tables, charts=lambda: [run_charts.breakdown(bars)])
    predicted = [bar for bar in bars if bar.run.origin == "predicted"]
    yield Section("Memory", "What fits", charts=lambda: [run_charts.memory(predicted)])


def _phases(cases: Sequence[Case]) -> Table:
    """Time of each phase, and the differences where both sides are known."""
    names = [one.label for one in Phase if any(run.phase_s.get(one.label, 0.0) > 0 for case in cases for run in case.runs)]
    rows: list[list[str]] = []
    for case in cases:
        sides = [[*(run.phase_s.get(name) or None for name in names), run.step_time_s] for run in case.runs]
        rows += [[run.origin, *map(milliseconds, values)] for run, values in zip(case.runs, sides, strict=True)]
        if len(sides) == 2:
            pairs = zip(*sides, strict=True)
            rows.append(["difference", *(signed_milliseconds(None if p is None or m is None else p - m) for p, m in pairs)])
    note = "milliseconds per step and training rank on the stream that blocks the rank; a phase includes its waiting time"
    groups = [(case.scenario, len(case.runs) + (len(case.runs) == 2)) for case in cases if case.runs]
    return _grouped(["", *names, "step"], rows, groups, heading="Time of each phase", notes=[note])


def _steps(cases: Sequence[Case]) -> Section:
    """The distribution of the times of single steps. cases: those with a predicted one."""
    rows: list[list[str]] = []
    groups: list[tuple[str, int]] = []
    for case in cases:
        own = list(_step_rows(case))
        rows += own
        groups.append((case.scenario, len(own)))
    return Section(
        "Steps",
        "How much single steps vary",
        "Percentiles of the times of single steps within a run. The step time above is that of a typical step.",
        tables=[_grouped(["", *SHOWN, "variation from, or distance"], rows, groups)],
        charts=lambda: [step_charts.steps(cases)],
    )


def _step_rows(case: Case) -> Iterator[list[str]]:
    """Yields a row for each side: seconds at percentiles, and sources of variation or distances."""
    assert case.predicted is not None
    found = case.predicted.step_distribution
    assert found is not None
    causes = ", ".join(f"{name} {percent(share)}" for name, share in found.shares.items() if share >= _MIN_STEP_SHARE)
    yield ["predicted", *map(duration, found.quantiles_s.values()), causes]
    compared = found.compared(case.measured.step_times_s) if case.measured else None
    if compared is not None:
        words = f"KS distance {compared.distance:.2f}, of shapes {compared.distance_of_shapes:.2f}, {compared.steps} steps"
        yield ["measured", *map(duration, compared.measured_s.values()), words]


def _grouped(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    groups: Sequence[tuple[str, int]],
    heading: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """A table of rows below the scenarios that they are of, which pages show below charts."""
    last = len(heads) - 1
    is_text = [number == 0 or head.startswith("variation") for number, head in enumerate(heads)]
    columns = [Column(heads[i], [row[i] for row in rows], is_text=is_text[i]) for i in range(last + 1)]
    return Table(columns, heading, notes, groups=groups, brief=())
