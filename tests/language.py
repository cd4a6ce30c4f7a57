"""Words that this project used in a meaning of its own, and where they still occur: `python -m tests.language [FOLDER …]`.

The words are searched in names, docstrings, comments and other texts of Python files, Markdown pages, templates and scenarios.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = [
    *("simulator", "validator", "reports", "proof", "commands", "scenarios", "docs", "examples", "benchmarks", "tests", ".ci"),
    *("scaleproof/__init__.py", "README.md", "CHANGELOG.md", "Makefile"),
]
# The list itself, and the test that gives examples of retired words.
_NOT_SEARCHED: Final = ("tests/language.py", "tests/test_language.py")
# Each with what to write instead.
RETIRED: Final = {
    r"told|tells?": "report, give, show, record",
    r"so many": "N, the number of",
    r"alike|unlike": "equivalent, identical; different",
    r"beside": "next to, in addition to, overlapped with",
    r"apart": "separate, distinguishable",
    r"held": "allocated, resident, live, kept",
    r"asked|asks|answered|answers": "requested, queries; results",
    r"hand(?:s|ed) on": "boundary activations; passes",
    r"lockstep": "model-parallel group",
    r"lanes?": "stream",
    r"gates?": "consistency model (BSP, SSP, ASP)",
    r"agreements?": "gradient synchronisation",
    r"slowness(?:es)?": "slowdown factor",
    r"knobs?": "parameter",
    r"doubts?|uncertain_quantities": "prediction interval, uncertainty",
    r"crews?": "group, concurrent",
    r"wires": "links",
    r"ragged": "CSR",
    r"reckon(?:s|ed)?": "compute, count",
    r"twins?": "counterpart",
    r"glued": "pinned to the end of a stage",
}
# Where gates are parts of layers, as of an LSTM.
_MODELS: Final = (
    "simulator/model/",
    "validator/train/models/",
    "tests/simulator/model/",
    "benchmarks/record_models.py",
    "docs/guides/",
)
_GATE: Final = re.compile(r"(?<![a-z])gates?(?![a-z])")
_SUFFIXES: Final = (".py", ".md", ".yaml", ".toml", ".html", ".js", ".css")
_WORD: Final = re.compile(rf"(?<![a-z])(?:{'|'.join(RETIRED)})(?![a-z])")
# Names of fields that users write, or that a library has.
_ALLOWED: Final = re.compile(
    r"float_gates|gated?_"
    # the product of a gated MLP, and what PCIe has
    r"|\"gate\"|\[gate, up|\.gate\b|or gate and up|lanes of pcie|pcie lanes?|lanes between two slots|each lane with"
    # the term of statistics; fields of clusters and keys of JSON files
    r"|held[-_ ]out|\"asked\"|\.tell\(\)"
    # projections of gated MLPs, and lanes of PCIe
    r"|[\"'.]gate\b|gate(?:,| and) up|(?:four|eight|sixteen|each|their|the|fewer)[ _]lanes?(?![a-z])"
)


def files(folders: list[str]) -> Iterator[Path]:
    """Python files, pages, templates and scenarios below some folders of the repository."""
    for folder in folders:
        path = ROOT / folder
        below = (
            [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and ".min." not in p.name)
        )
        yield from (p for p in below if p.relative_to(ROOT).as_posix() not in _NOT_SEARCHED)


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, word in small letters and what to write instead, of each retired word in a file."""
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    # ignoring case in the patterns takes ten times as long
    for number, line in enumerate(path.read_text(encoding="utf-8").lower().splitlines(), 1):
        searched = _GATE.sub("", line) if place.startswith(_MODELS) else line
        for match in _WORD.finditer(_ALLOWED.sub("", searched)):
            yield number, match[0], next(instead for word, instead in RETIRED.items() if re.fullmatch(word, match[0]))


def main(folders: list[str]) -> int:
    """Prints what is found; the exit code is 1 if anything is."""
    count = 0
    for path in files(folders or FOLDERS):
        for line, word, instead in found(path):
            count += 1
            print(f"{path.relative_to(ROOT)}:{line}: {word}: write {instead}")
    print(f"{count} retired words")
    return int(count > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
