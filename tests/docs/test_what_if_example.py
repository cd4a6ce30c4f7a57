"""examples/what_if.py prints the output shown on its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "what-if.md").read_text()


@pytest.mark.full
def test_the_example_prints_the_output_shown_on_the_page() -> None:
    done = subprocess.run([sys.executable, "examples/what_if.py"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shown = re.search(r"examples/what_if\.py\]\(.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert done.stdout.split() == shown[1].split()
