"""Code and pages use the field's words, not those that this project once used in a meaning of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.language import RETIRED, files, found

# What is clean stays clean; the rest has at most as many retired words as are listed.
REMAINING = {
    "simulator/common": 0,
    "simulator/model": 2,
    "simulator/cluster": 5,
    "simulator/strategy": 23,
    "simulator/frameworks": 0,
    "simulator/program": 27,
    "simulator/engine": 16,
    "simulator/memory": 5,
    "simulator/run": 9,
    "simulator/uncertainty": 13,
    "simulator/scenario": 1,
    "simulator/predict.py": 1,
    "simulator/analysis": 46,
    "validator/launch": 0,
    "validator/train": 0,
    "validator/strategy": 3,
    "validator/record": 4,
    "validator/verify": 2,
    "validator/netlab": 0,
    "validator/probe": 0,
    "validator/calibration": 3,
    "validator/reconciliation": 6,
    "validator/published": 2,
    "validator/experiments": 7,
    "validator/measure.py": 0,
    "validator/results.py": 0,
    "reports": 11,
    "commands": 7,
    "docs": 35,
    "README.md": 2,
}


@pytest.mark.parametrize("folder", sorted(REMAINING))
def test_no_retired_word_comes_back(folder: str) -> None:
    words = [f"{path}:{line}: {word}: write {instead}" for path in files([folder]) for line, word, instead in found(path)]
    assert len(words) <= REMAINING[folder], "\n".join(words)


def test_a_retired_word_is_found_in_names_and_texts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("All ranks are alike.\nThe gated MLP has a gate.\n`MAIN_LANE` and so many\n")
    assert [(line, word) for line, word, _ in found(page)] == [(1, "alike"), (2, "gate"), (3, "LANE"), (3, "so many")]
    assert len(RETIRED) >= 20
