"""docs/guides/workloads: tables of sizes equal today's models and published figures."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "scripts" / "tables.py"))


def page(name: str) -> str:
    return (DOCS / "guides" / "workloads" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["vision", "recommenders", "sequence-models"])
def test_the_table_of_sizes_is_the_one_of_today(name: str) -> None:
    assert f"\n{SCRIPT['sizes'](name)}\n" in page(name), "print it again: python docs/scripts/tables.py"


def test_the_sentence_on_modules_of_timm_is_the_one_of_today() -> None:
    assert f"\n{SCRIPT['modules']()}\n" in page("vision"), "print it again: python docs/scripts/tables.py"
