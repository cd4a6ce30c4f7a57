"""README.md shows all uses, and its scenario. `make docs-check` runs its commands, and those of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.scripts.console import commands, pages
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.load import load

README = pages()[0]


def test_the_readme_shows_all_four_uses() -> None:
    shown = " ".join(command.words for page in pages() for command in commands(page.read_text()))
    for use in ("scaleproof predict", "--set", "scaleproof calibrate", "scaleproof reconcile", "scaleproof report"):
        assert use in shown


def test_the_readmes_scenario_loads_and_gives_the_error_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    Path("scenario.yaml").write_text(text)
    assert load("scenario.yaml").strategy.stages == 8
    Path("scenario.yaml").write_text(text.replace("stages: 8", "stages: 32"))
    with pytest.raises(ScenarioError) as caught:
        load("scenario.yaml")
    assert f"`{caught.value}`" in README.read_text()
