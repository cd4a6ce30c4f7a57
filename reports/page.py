"""The page: everything a results folder says, in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from reports import figures, results, tables, text
from reports.results import Case, Explanation, Results
from reports.side_by_side import side_by_side
from simulator.errors import RunError
from simulator.run import Phase, Run, write_aside

# a page with more timelines than this is too heavy to open; every case is in the tables
_MOST_TIMELINES: Final = 32


@dataclass(frozen=True)
class Picture:
    """A figure of the page. name: its file in figures/, without the ending. svg: the same for print, of some. explanation: of
    what it shows."""

    name: str
    heading: str
    png: bytes
    svg: bytes | None = None
    explanation: Explanation | None = None

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def build(folder: Path) -> Path:
    """Writes `index.html`, `figures/*.png` and `tables/*.csv` into the results folder; returns the page's path.

    Raises InputError when the folder holds no results, RunError when it cannot be written to.
    """
    found = results.read(folder)
    overview, timelines = _overview(found.cases), _timelines(found.cases)
    sheets = {
        "cases.csv": tables.cases_csv(found.cases),
        "phases.csv": tables.phases_csv(found.cases),
        "breakdown.csv": tables.breakdown_csv(found.cases),
    }
    page = _render(found, overview, timelines, sheets)
    files = {f"figures/{picture.name}.png": picture.png for picture in [*overview.values(), *timelines]}
    files |= {f"figures/{picture.name}.svg": picture.svg for picture in timelines if picture.svg is not None}
    files |= {f"tables/{name}": _encoded(sheet) for name, sheet in sheets.items()}
    try:
        # the page comes last: where it is, what it speaks of is too
        for name, content in (files | {"index.html": _encoded(page)}).items():
            write_aside(folder / name, content)
    except OSError as error:
        raise RunError(f"{folder}: the page cannot be written ({error.strerror}); free or unlock the folder") from None
    return folder / "index.html"


def _overview(cases: Sequence[Case]) -> dict[str, Picture]:
    """The figures over all cases, those that there is data for."""
    drawn = {
        "accuracy": ("Predicted against measured step time", figures.accuracy(cases)),
        "scaling": ("Throughput against training ranks", figures.scaling(cases)),
        "breakdown": ("Time per step by cause", figures.breakdown(cases)),
    }
    return {name: Picture(name, heading, png) for name, (heading, png) in drawn.items() if png is not None}


def _timelines(cases: Sequence[Case]) -> list[Picture]:
    drawn = [(f"timeline-{number:02d}-{_slug(case.scenario)}", case) for number, case in enumerate(cases, start=1)]
    pictures = [(name, case, side_by_side(case, "png")) for name, case in drawn[:_MOST_TIMELINES]]
    return [
        Picture(name, case.scenario, png, side_by_side(case, "svg"), case.explanation)
        for name, case, png in pictures
        if png is not None
    ]


def _slug(name: str) -> str:
    """A part of a file name that every file system takes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "case"


def _encoded(content: str) -> bytes:
    return content.encode("utf-8", errors="replace")


def _render(found: Results, overview: dict[str, Picture], timelines: list[Picture], sheets: dict[str, str]) -> str:
    environment = Environment(
        loader=PackageLoader("reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "ms": text.milliseconds,
        "signed_ms": text.signed_milliseconds,
        "when": text.when,
        "rate": text.rate,
        "percent": text.percent,
        "signed_percent": text.signed_percent,
        "family_name": text.family_name,
    }
    return environment.get_template("page.html").render(
        found=found,
        headline=text.headline(found),
        facts=text.facts(found),
        verdicts=[text.verdict(case, found.max_error) for case in found.cases],
        ranks_text=text.ranks_text,
        step_range_s=tables.step_range_s,
        baselines=_baselines(found.cases),
        phases=[phase.label for phase in Phase if _spent(found.cases, phase)],
        phase_rows=_phase_rows,
        overview=overview,
        timelines=timelines,
        most_timelines=_MOST_TIMELINES,
        most_in_breakdown=figures.MOST_CASES,
        sheets={name: base64.b64encode(_encoded(sheet)).decode() for name, sheet in sheets.items()},
    )


def _baselines(cases: Sequence[Case]) -> list[str]:
    """What efficiencies are against, each once: 'weak: …', 'strong: …'."""
    named = [f"{kind}: {name}" for case in cases for run in case.runs for kind, name in (run.baseline or {}).items()]
    return list(dict.fromkeys(named))


def _spent(cases: Sequence[Case], phase: Phase) -> bool:
    return any(run.phase_s.get(phase.label, 0.0) > 0 for case in cases for run in case.runs)


def _phase_rows(case: Case, phases: Sequence[str]) -> list[tuple[str, list[float | None]]]:
    """Rows of the phase table for one case: seconds in each phase and per step, and the difference where there are both."""
    rows: list[tuple[str, list[float | None]]] = [(run.origin, _phase_row(run, phases)) for run in case.runs]
    if len(rows) == 2:
        predicted, measured = (values for _, values in rows)
        pairs = zip(predicted, measured, strict=True)
        rows.append(("difference", [None if p is None or m is None else p - m for p, m in pairs]))
    return rows


def _phase_row(run: Run, phases: Sequence[str]) -> list[float | None]:
    return [*(run.phase_s.get(phase) or None for phase in phases), run.step_time_s]
