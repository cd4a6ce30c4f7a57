"""docs/reference/strategies.md: its pictures are of today, its tables name every field, its schedules are all."""

from __future__ import annotations

import itertools
import json
import re
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from PIL import Image

from scaleproof.reports.timeline.step import typical_step
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy import KINDS
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "strategies.md").read_text()
PICTURES = ROOT / "docs" / "pictures"
COMMANDS: list[list[str]] = runpy.run_path(str(ROOT / "docs" / "scripts" / "pictures.py"))["commands"]()
SECTIONS: dict[str, str] = dict(re.findall(r"^## [^\n]*`(\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
DEFAULTS = {"0 s": 0.0, "25 MiB": 25 * 2.0**20}


def drawn(command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command's picture says that it shows, and what it would show if it was drawn now."""
    timeline, name, *options = command
    assert timeline == "timeline"
    overrides = [value for option, value in itertools.pairwise(options) if option == "--set"]
    with Image.open(ROOT / options[options.index("--out") + 1]) as picture:
        shown = json.loads(picture.info["Description"])
    step = typical_step(predict(load(name, overrides)))
    assert step is not None
    return shown, step.facts()


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: Path(command[-1]).stem)
def test_pictures_show_current_predictions(command: list[str]) -> None:
    shown, now = drawn(command)
    redraw = "draw them again: python docs/scripts/pictures.py"
    assert shown["strategy"] == now["strategy"], redraw
    assert shown["step_ms"] == pytest.approx(now["step_ms"], rel=1e-6), redraw
    assert shown["kinds"].keys() == now["kinds"].keys(), redraw
    for kind, sums in now["kinds"].items():
        assert shown["kinds"][kind] == pytest.approx(sums, rel=1e-6), redraw


def test_every_picture_is_shown_and_every_command_has_one() -> None:
    shown = set(re.findall(r"!\[[^\]]+\]\(../pictures/([\w.-]+)\)", PAGE))
    assert shown == {path.name for path in PICTURES.iterdir()}
    assert {f"docs/pictures/{name}" for name in shown} == {command[-1] for command in COMMANDS}


def test_pictures_are_small() -> None:
    sizes = [path.stat().st_size for path in PICTURES.iterdir()]
    assert max(sizes) < 100_000
    assert sum(sizes) < 1_500_000


def test_every_schedule_has_a_picture_and_a_formula() -> None:
    for schedule in get_args(ScheduleName):
        assert f"--out docs/pictures/{schedule.replace('_', '-')}.png" in PAGE
        assert re.search(rf"^\|[^|]*`{schedule}`", SECTIONS["pipeline"], re.MULTILINE)


def rows(kind: str) -> dict[str, Any]:
    """The fields that a family's table names, with their defaults."""
    found: dict[str, Any] = {}
    _, _, table = SECTIONS[kind].partition("| field | default | is |\n|---|---|---|\n")
    for names, defaults in re.findall(r"^\| ([^|]*) \| ([^|]*) \|", table, re.MULTILINE):
        values = (DEFAULTS.get(text, yaml.safe_load(text)) for text in re.findall(r"`([^`]*)`", defaults))
        found |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=True))
    return found


@pytest.mark.parametrize("kind", SECTIONS)
def test_tables_name_every_field_with_its_default(kind: str) -> None:
    strategy = KINDS.find(kind)
    assert strategy is not None
    fields = {field.alias or name: field.default for name, field in strategy.model_fields.items() if name != "kind"}
    redraw = rows(kind)
    if kind == "hybrid":
        others = rows("data_parallel") | rows("pipeline") | {"overlap": False}
        redraw |= {name: value for name, value in others.items() if name != "shares"}
    assert redraw == {name: list(default) if isinstance(default, tuple) else default for name, default in fields.items()}


def test_every_family_has_a_section() -> None:
    assert sorted(SECTIONS) == sorted(KINDS.names())
