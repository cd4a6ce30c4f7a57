"""Code and pages use the field's terms, not words that this project once used in its own meaning."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.language import FOLDERS, RETIRED, files, found

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_retired_word_comes_back(folder: str) -> None:
    words = [f"{path}:{line}: {word}: write {instead}" for path in files([folder]) for line, word, instead in found(path)]
    assert not words, "\n".join(words)


@pytest.mark.parametrize("package", ["simulator", "validator", "reports", "proof", "commands"])
def test_no_two_classes_of_a_package_have_the_same_name(package: str) -> None:
    classes = [
        node.name
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_a_retired_word_is_found_in_names_and_texts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("All ranks are alike.\nThe gated MLP has a gate.\n`MAIN_LANE` and so many\n")
    assert [(line, word) for line, word, _ in found(page)] == [(1, "alike"), (2, "gate"), (3, "lane"), (3, "so many")]
    assert len(RETIRED) >= 20
