"""docs/guides/capture.md: its tables are those of the code and of what was measured."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from scaleproof.validator.capture.packages import STAND_INS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guides" / "capture.md").read_text()
SCRIPT = runpy.run_path(str(DOCS / "scripts" / "tables.py"))
# names of the table of packages by those packages
NAMED = {
    package.partition(".")[0]: re.findall(r"\w+_\w+|\w*[A-Z]\w*[A-Z]\w*", names)
    for packages, names in re.findall(r"^\| ([\w, .]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    for package in packages.split(", ")
    if package.partition(".")[0] in STAND_INS
}


@pytest.mark.parametrize("name", ["examples", "captured_frameworks", "launchers"])
def test_tables_are_those_of_today(name: str) -> None:
    assert f"\n{SCRIPT[name]()}\n" in PAGE, "print it again: python docs/scripts/tables.py"


def test_the_table_of_packages_has_all_and_names_what_is_there() -> None:
    assert NAMED.keys() == STAND_INS.keys()
    for package, names in NAMED.items():
        known = importlib.import_module(STAND_INS[package]).MODULES
        there = " ".join([*known, *(name for one in known.values() for name in one)]).lower()
        assert [name for name in names if name.lower() not in there] == []
