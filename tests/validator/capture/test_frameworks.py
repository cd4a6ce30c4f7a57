"""Training by published frameworks is captured, with the FLOPs that are counted by hand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

_PATH: Final = Path(__file__).parents[3] / "benchmarks" / "captured_frameworks.py"


def benchmark() -> Any:
    """The module with the cases."""
    spec = importlib.util.spec_from_file_location("captured_frameworks", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES: Final[dict[str, Any]] = benchmark().CASES


def test_a_file_keeps_the_rows_of_other_cases(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    update = benchmark().update
    update(file, {"LoRA": "| LoRA | first |", "TRL SFT": "- TRL SFT (trl 1): train.py:1: fails"})
    update(file, {"Trainer": "| Trainer | second |", "TRL SFT": "| TRL SFT | third |"})
    rows = [line for line in file.read_text().splitlines() if line.startswith(("| Trainer", "| LoRA", "| TRL", "-"))]
    assert rows == ["| Trainer | second |", "| LoRA | first |", "| TRL SFT | third |"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_training_by_frameworks_is_captured(name: str) -> None:
    command = [sys.executable, str(_PATH), name]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
    if said.endswith("is not installed"):
        pytest.skip(said)
    if CASES[name].fails:
        # with a line, a sentence, and what to do
        assert re.search(r": \S+\.py:\d+: .*; ", said), said
        return
    assert said.startswith(f"| {name} |"), said
    _, _, _, _, _, flops, by_hand, *_ = (column.strip() for column in said.split("|"))
    if by_hand != "-":
        assert float(flops.split()[0]) == pytest.approx(float(by_hand.split()[0]), rel=0.1)
