"""Generated pages of docs/reference are current."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "scripts" / "reference.py"))
PAGES: dict[Path, str] = SCRIPT["pages"]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_pages_are_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "write it again: python docs/scripts/reference.py"
