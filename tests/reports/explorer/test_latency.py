"""Response time of the explorer's page on a quiet machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "explorer.py"


@pytest.mark.nightly
def test_a_change_is_shown_within_200_ms() -> None:
    # in a separate process, since each process has one Chromium
    output = subprocess.run([sys.executable, BENCHMARK], capture_output=True, text=True, timeout=600, check=True).stdout
    found = re.search(r"^all changes .* 95th percentile +([\d.]+) ms", output, re.MULTILINE)
    assert found
    assert float(found[1]) < 200
