"""docs/guides/measure.md names every kind of strategy that is measured, with every field that is followed, and all options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.library import names
from simulator.strategy import KINDS
from validator.twins import MEASURED

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "guides" / "measure.md").read_text()
ROWS: dict[str, str] = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", PAGE, re.MULTILINE))


def test_every_measured_kind_has_its_fields() -> None:
    assert set(ROWS) >= set(MEASURED) == set(KINDS.names())
    for kind, followed in MEASURED.items():
        fields = {(found := KINDS.find(kind)) and (found.model_fields[name].alias or name) for name in followed}
        named = re.findall(r"`(\w+)`", ROWS[kind])
        assert set(named) == fields


@pytest.mark.parametrize("name", names("netlab"))
def test_shipped_scenarios_of_the_lab_are_told_with_what_came_of_them(name: str) -> None:
    assert re.search(rf"^\| {name} \|", PAGE, re.MULTILINE)
