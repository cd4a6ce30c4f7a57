"""docs/reference/systems.md: its table equals current predictions and lists all shipped systems."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from scaleproof.simulator.common import catalog
from tests.validator.verdicts import in_bulk

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "systems.md").read_text()
SCRIPT = runpy.run_path(str(DOCS / "scripts" / "tables.py"))

SYSTEMS = catalog.names("systems")


def test_the_table_has_the_expected_header() -> None:
    assert f"\n{SCRIPT['SYSTEMS_HEAD']}\n" in PAGE


@pytest.mark.parametrize("name", [*SYSTEMS[1::2], *in_bulk(*SYSTEMS[::2])])
def test_the_table_has_the_systems_current_prediction(name: str) -> None:
    assert f"\n{SCRIPT['system'](name)}\n" in PAGE
