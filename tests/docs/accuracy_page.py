"""Outputs of `scaleproof score` in docs/measured, whose numbers docs/measured/accuracy.md and its log sum up."""

from __future__ import annotations

from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

_MEASURED = Path(__file__).parents[2] / "docs" / "measured"
RESULTS = _MEASURED / "accuracy.md"
LOG = _MEASURED / "accuracy-log.md"
ALL = "scaleproof score"
CALIBRATED = "scaleproof score scenarios/published/transformer_training.csv --calibrated"
OUTPUTS = {ALL: "score.txt", CALIBRATED: "score-calibrated.txt"}


class Line(NamedTuple):
    """A set's score, or a total: counts, and shares in percent, None without rows."""

    rows: int
    scored: int
    mean: float | None
    median: float | None
    p95: float | None
    worst: float | None
    order: float | None
    floor: float | None
    covered: float | None
    width: float | None = None
    regret: float | None = None
    worst_regret: float | None = None


class Part(NamedTuple):
    """A table's: its lines by set and total, and the text below them."""

    lines: dict[str, Line]
    text: str

    @property
    def sets(self) -> dict[str, Line]:
        return {name: line for name, line in self.lines.items() if name not in ("all", "more than 2 nodes")}


@cache
def shown(command: str) -> dict[str, Part]:
    """What a command prints, by table."""
    return dict(_part(text) for text in output(command).split("\n\n"))


def output(command: str) -> str:
    """The output of a command that docs/measured keeps."""
    return (_MEASURED / OUTPUTS[command]).read_text(encoding="utf-8")


def _part(text: str) -> tuple[str, Part]:
    title, head, *rest = text.splitlines()
    width = head.index(" rows") - 1
    lines = list(takewhile(lambda line: len(line) == len(head), rest))
    return title, Part({line[:width].strip(): _line(line[width:]) for line in lines}, "\n".join(rest[len(lines) :]))


def _line(text: str) -> Line:
    rows, scored, *shares = text.replace(" %", "%").split()
    return Line(int(rows), int(scored), *(None if share == "–" else float(share.rstrip("%")) for share in shares))
