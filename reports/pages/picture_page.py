"""Pages of folders whose figures are pictures: verdicts of claims, and a map of the fastest strategy."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, FiniteFloat, TypeAdapter, ValidationError

from scaleproof.reports.pages.sections import Page, PageSection, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.sections import slug
from scaleproof.reports.text import percent, spaced, verdict_words
from scaleproof.simulator.common.errors import InputError, one_line
from scaleproof.simulator.common.units import format_Bps, format_bytes, format_number, format_time_s

CLAIMS_FILE: Final = "claims.json"
CROSSOVER_FILE: Final = "crossover.json"
_CROSSOVER_PICTURE: Final = "crossover.png"
_MOST_BYTES: Final = 2**24
_UNITS: Final[dict[str, Callable[[float], str]]] = {"B/s": format_Bps, "s": format_time_s, "B": format_bytes}


class _Verdict(BaseModel):
    verdict: str
    condition: str = ""
    date: str = ""

    @property
    def words(self) -> str:
        return verdict_words(self.verdict, self.condition)


class _Claim(BaseModel):
    name: str
    claim: str
    because: str = ""
    source: str = ""
    predicted: _Verdict
    measured: _Verdict | None = None


class _Axis(BaseModel):
    field: str
    unit: str = ""
    values: tuple[FiniteFloat, ...]

    def text(self, value: float) -> str:
        """A value with its unit."""
        return _UNITS[self.unit](value) if self.unit in _UNITS else f"{format_number(value)} {self.unit}".strip()


class _Point(BaseModel):
    strategy: str
    wins: bool


class _Border(BaseModel):
    y: FiniteFloat
    x: FiniteFloat
    below: str
    above: str
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None


class _Crossover(BaseModel):
    scenario: str
    x: _Axis
    y: _Axis
    strategies: dict[str, str]
    points: tuple[_Point, ...]
    borders: tuple[_Border, ...]


def claims_page(folder: Path) -> Page:
    """The page of what `claims --out` wrote. Raises InputError if it cannot be read."""
    claims = _read(folder / CLAIMS_FILE, TypeAdapter(list[_Claim]))
    counts = Counter(one.predicted.verdict for one in claims)
    headline = f"Of {len(claims)} claims, " + ", ".join(
        f"{counts[verdict]} {'is' if counts[verdict] == 1 else 'are'} {words}"
        for verdict, words in (("holds", "true"), ("holds when", "true under a condition"), ("does not hold", "false"))
        if counts[verdict]
    )
    sections = [
        PageSection(
            slug(one.name),
            spaced(one.name.replace("-", " ")),
            one.claim,
            before="claim.html",
            data={"claim": one, "uri": uri},
            result=one.predicted.words,
        )
        for one, uri in ((one, _uri(folder, f"{one.name}.png")) for one in claims)
    ]
    rows = ([one.name, one.claim, one.predicted.words, one.measured.words if one.measured else ""] for one in claims)
    sheets = {"claims.csv": csv_tables.rows_csv(("name", "claim", "predicted", "measured"), rows)}
    if len(claims) == 1:
        words = claims[0].predicted.words.removeprefix("Depends: ")
        headline = f"{claims[0].claim.rstrip('.')}: {words[0].lower()}{words[1:]}"
    return _page("claims", headline, sections, sheets, is_empty=not claims)


def crossover_page(folder: Path) -> Page:
    """The page of what `crossover --out` wrote. Raises InputError if it cannot be read."""
    found = _read(folder / CROSSOVER_FILE, TypeAdapter(_Crossover))
    wins = Counter(point.strategy for point in found.points if point.wins)
    places = len(found.x.values) * len(found.y.values)
    shares = [f"{name} in {percent(count / places)}" for name, count in wins.most_common()]
    headline = f"fastest is {', '.join(shares)} of the map" if shares else "nothing fits"
    headline = f"{found.scenario}: {_one_border(found) or headline}"
    borders = [
        (found.y.text(one.y), one.below or "none", one.above or "none", found.x.text(one.x), _interval(found.x, one))
        for one in found.borders
    ]
    names = spaced(found.x.field.rpartition(".")[2]), spaced(found.y.field.rpartition(".")[2])
    data = {"uri": _uri(folder, _CROSSOVER_PICTURE), "found": found, "borders": borders, "names": names}
    section = PageSection("crossover", "Crossover", "Which is fastest where", before="crossover.html", data=data)
    sheets = {name: text for name in ("points.csv", "borders.csv") if (text := _text(folder / name))}
    return _page(f"crossover of {found.scenario}", headline, [section], sheets, is_empty=not found.points)


def _one_border(found: _Crossover) -> str:
    """'ring is fastest from 1.87 Gbit/s to 2.70 Gbit/s on, ps-all below' if each row has this border alone; else ""."""
    pairs = {(one.below, one.above) for one in found.borders if one.below and one.above}
    if len(pairs) != 1 or sorted(one.y for one in found.borders) != sorted(found.y.values):
        return ""
    ((below, above),) = pairs
    ends = dict.fromkeys(found.x.text(end(one.x for one in found.borders)) for end in (min, max))
    return f"{above} is fastest from {' to '.join(ends)} on, {below} below"


def _interval(axis: _Axis, border: _Border) -> str:
    """'10.2 Gbit/s to 14.1 Gbit/s'; an end beyond the map is open."""
    if border.low is None and border.high is None:
        return "not known"
    if not border.low and border.high is None:
        return "the whole map: the two are too close"
    low = axis.text(border.low) if border.low else "below the map"
    return f"{low} to {axis.text(border.high) if border.high is not None else 'beyond the map'}"


def _page(what: str, headline: str, sections: Sequence[PageSection], sheets: dict[str, str], is_empty: bool) -> Page:
    sources = Sources([origins.made_with()])
    return Page(f"scaleproof · {what}", f"{headline.rstrip('.')}.", "", [], (), sections, sheets, sources, is_empty)


def _read(path: Path, kind: TypeAdapter[Any]) -> Any:
    text = _text(path)
    try:
        return kind.validate_python(json.loads(text))
    except (ValidationError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with --out {path.parent}") from None


def _text(path: Path) -> str:
    """The text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() and path.stat().st_size <= _MOST_BYTES else ""
    except (OSError, ValueError):
        return ""


def _uri(folder: Path, name: str) -> str:
    """A PNG of the folder as a data URI; "" if it cannot be read."""
    path = folder / Path(name).name
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
