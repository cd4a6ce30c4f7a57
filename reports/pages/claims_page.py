"""The page of claims: their verdicts, with the pictures of their folder."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from scaleproof.reports.pages.described import full_stop
from scaleproof.reports.pages.sections import Page, PageSection, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.sections import slug
from scaleproof.reports.text import spaced, verdict_words
from scaleproof.simulator.common.errors import InputError, one_line

FILE: Final = "claims.json"
_MOST_BYTES: Final = 2**24


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


def page(folder: Path) -> Page:
    """The page of what `claims --out` wrote. Raises InputError if it cannot be read."""
    claims = _read(folder / FILE)
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
    rows: list[list[str | float | int | None]] = [
        [one.name, one.claim, one.predicted.words, one.measured.words if one.measured else ""] for one in claims
    ]
    sheets = {"claims.csv": csv_tables.rows_csv(("name", "claim", "predicted", "measured"), rows)}
    if len(claims) == 1:
        words = claims[0].predicted.words.removeprefix("Depends: ")
        headline = f"{claims[0].claim.rstrip('.')}: {words[0].lower()}{words[1:]}"
    sources = Sources([origins.made_with()])
    return Page("scaleproof · claims", full_stop(headline), "", [], (), sections, sheets, sources, is_empty=not claims)


def _read(path: Path) -> list[_Claim]:
    try:
        return TypeAdapter(list[_Claim]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValidationError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with --out {path.parent}") from None


def _uri(folder: Path, name: str) -> str:
    """A PNG of the folder as a data URI; "" if it cannot be read."""
    path = folder / Path(name).name
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
