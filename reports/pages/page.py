"""Writes the report of a folder: one self-contained HTML file, and figures and tables as files."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from scaleproof.reports import text
from scaleproof.reports.pages import (
    claims_page,
    collective_page,
    crossover_page,
    described,
    diagnosis_page,
    elastic_page,
    fit_page,
    plan_page,
    result_page,
    study_page,
)
from scaleproof.reports.pages.sections import Page
from scaleproof.reports.read import results, study_folder
from scaleproof.reports.read.results import Results
from scaleproof.simulator.analysis.crossover.crossover import FILE as CROSSOVER_FILE
from scaleproof.simulator.analysis.diagnosis import FILE as DIAGNOSIS_FILE
from scaleproof.simulator.analysis.elastic.outcome import FILE as ELASTIC_FILE
from scaleproof.simulator.analysis.fit_record import FILE as FIT_FILE
from scaleproof.simulator.analysis.planner.sizes import is_plan_folder
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file

_PAGE: Final = "index.html"
# Pages by the file that they show.
_PAGES: Final = {
    claims_page.FILE: claims_page.page,
    CROSSOVER_FILE: crossover_page.page,
    collective_page.COLLECTIVES_FILE: collective_page.page,
    DIAGNOSIS_FILE: diagnosis_page.page,
    FIT_FILE: fit_page.page,
    ELASTIC_FILE: elastic_page.page,
}
_SCRIPTS: Final = ("head.js", "page.js")
_LIBRARY: Final = Path(__file__).parents[1] / "vendor" / "plotly-basic.min.js"


class Built(NamedTuple):
    """The path of a page, and whether there was nothing to show."""

    path: Path
    is_empty: bool


def build(folder: Path) -> Built:
    """Writes `index.html`, `figures/*` and `tables/*.csv` into a folder of results.

    Raises InputError if the folder has no results, RunError if it cannot be written to.
    """
    page = _page(folder)
    pictures = [picture for section in page.sections for picture in section.pictures]
    files = {f"figures/{one.chart.name}.{form}": getattr(one.drawn, form) for one in pictures for form in ("png", "svg")}
    files |= {f"tables/{name}": _encoded(sheet) for name, sheet in page.sheets.items()}
    files[_PAGE] = _encoded(_render(page))
    try:
        with locked_file(folder / _PAGE, "a report", PATIENCE_S):
            # the page comes last: where it is, what it speaks of is too
            for name, content in files.items():
                write_atomically(folder / name, content)
    except OSError as error:
        raise RunError(f"{folder}: the page cannot be written ({error.strerror}); free or unlock the folder") from None
    return Built(folder / _PAGE, page.is_empty)


def _page(folder: Path) -> Page:
    """The page of plans, of a study with or without measured runs, of runs, or of the file of another command."""
    if folder.is_dir() and is_plan_folder(folder):
        return plan_page.page(folder)
    if folder.is_dir() and study_folder.is_study(folder):
        runs = results.read(folder) if results.has_runs(folder) else Results()
        page = study_page.page(study_folder.read(folder), runs.cases)
        return replace(page, notes=(*page.notes, *runs.notes), sections=(*page.sections, *result_page.sections(runs)))
    if folder.is_dir() and not results.has_runs(folder):
        for name, page_of in _PAGES.items():
            if (folder / name).is_file():
                return page_of(folder)
    return result_page.page(results.read(folder))


def _encoded(content: str) -> bytes:
    return content.encode("utf-8", errors="replace")


def _render(page: Page) -> str:
    environment = Environment(
        loader=PackageLoader("scaleproof.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "capitalised": described.capitalised,
        "sentences": described.sentences,
        "look": described.look,
        "known_facts": described.known_facts,
        "narrow": text.with_narrow_spaces,
        "groups": described.groups,
        "shown_columns": described.shown_columns,
    }
    head, own = (environment.get_template(name).render() for name in _SCRIPTS)
    library = _library() if any(section.pictures for section in page.sections) else ""
    scripts = {"head": head, "library": library, "own": own}
    # only these run, whatever the folder says
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts.values())
    return environment.get_template("page.html").render(
        page=page,
        policy=f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {hashes}",
        scripts=scripts,
        sheets={name: base64.b64encode(_encoded(sheet)).decode() for name, sheet in page.sheets.items()},
        files={name: base64.b64encode(_encoded(content)).decode() for name, content in page.sources.files.items()},
    )


def _library() -> str:
    """The vendored plotly.js with lines, markers and bars."""
    return _LIBRARY.read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
