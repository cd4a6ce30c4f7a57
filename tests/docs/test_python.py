"""The page on Python and the notebook: their code runs, and gives the texts shown."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import scaleproof

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "examples" / "run_notebook.py"))
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text()


def test_the_page_names_everything_public() -> None:
    assert [name for name in scaleproof.__all__ if f"`{name}" not in PAGE] == []


@pytest.mark.full
def test_the_examples_of_the_page_give_the_texts_shown() -> None:
    assert SCRIPT["rewritten"](PAGE) == PAGE, "run examples/run_notebook.py"


@pytest.mark.full
def test_the_notebook_has_the_outputs_of_its_cells() -> None:
    text = (ROOT / "examples" / "notebook.ipynb").read_text()
    notebook = json.loads(text)
    assert len(text) < 256 * 1024
    assert SCRIPT["texts"](SCRIPT["run"](notebook)) == SCRIPT["texts"](notebook), "run examples/run_notebook.py"
