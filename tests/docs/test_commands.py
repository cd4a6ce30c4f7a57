"""Every command that README.md and the docs show is run, and its output compared with the one shown.

Blocks marked `console` must match to the letter; in those marked `console measured` the numbers may differ, being times, and
what explains the difference between two of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.load import load

# Commands that take longer than all others together, and those of which one shows how the others are printed.
_LONG = (
    "claims",
    "import kernels gpu_kernels.csv",
    "uneven",
    "crossover resnet50-servers-p100",
    "fit",
)
_LONG_REPEATS = ("goodput", "report", "sweep")
README = Path(__file__).parents[2] / "README.md"
PAGES = [README, *sorted((README.parent / "docs").rglob("*.md"))]


def commands() -> list[tuple[str, str, bool]]:
    """(command, shown output, whether it holds measured numbers) in their order."""
    found = []
    text = "\n".join(page.read_text() for page in PAGES)
    for kind, block in re.findall(r"^```console( measured)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip("\n"), bool(kind)))
    return found


def without_numbers(text: str) -> str:
    """Numbers with their units and the space that aligns them, as one mark each, and explanations as one."""
    number = r"[ +-]*\d[\d.,]*( ?(d|h|min|s|ms|us|ns|%|GB/s|MB/s|GFLOP/s|TFLOP/s)(?!\w))?"
    text = re.sub(r"(worst \S+) \([^)]*\)", r"\1 (some run)", text)
    text = re.sub(r"^  [+-]\S+ ms = .*(?:\n  .*)*", "  (why)", text, flags=re.MULTILINE)
    # which groups can be fitted, and whether another line holds from a size on, is up to the machine's noise
    text = re.sub(r"^(  all_reduce over .*\n)+", "  (sums)\n", text, flags=re.MULTILINE)
    text = re.sub(r" +(yes|no)$", " (whether)", text, flags=re.MULTILINE)
    return re.sub(number, " #", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of the README's commands, with the shipped tables; commands build on one another."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("scenarios", "examples"):
        (folder / name).symlink_to(README.parent / name)
    return folder


def test_the_readme_shows_all_four_uses() -> None:
    shown = " ".join(command for command, _, _ in commands())
    for use in ("scaleproof predict", "--set", "scaleproof calibrate", "scaleproof reconcile", "scaleproof report"):
        assert use in shown


def test_the_readmes_scenario_loads_and_gives_the_error_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    Path("scenario.yaml").write_text(text)
    assert load("scenario.yaml").strategy.stages == 8
    Path("scenario.yaml").write_text(text.replace("stages: 8", "stages: 32"))
    with pytest.raises(ScenarioError) as caught:
        load("scenario.yaml")
    assert f"`{caught.value}`" in README.read_text()


def in_turn() -> Iterator[Any]:
    """Commands of the README. Those that measure, or score all rows, run nightly only."""
    seen = set()
    for command, shown, measured in commands():
        words = command.removeprefix("scaleproof ")
        kind = words.split()[0]
        is_long = words.startswith(_LONG) or (kind in _LONG_REPEATS and kind in seen)
        seen |= {kind} if not measured else set()
        at_night = measured or kind == "score"
        marks = [pytest.mark.nightly] if at_night else [pytest.mark.full] if is_long else []
        yield pytest.param(command, shown, measured, marks=marks)


@pytest.mark.parametrize(("command", "shown", "measured"), list(in_turn()))
def test_readme_commands_print_the_output_shown(
    command: str, shown: str, measured: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(command)
    assert program == "scaleproof"
    monkeypatch.chdir(folder)
    exit_code = scaleproof.main(words)
    out, err = capsys.readouterr()
    # 3: predicted, and does not fit into memory
    assert exit_code in (0, 3), err
    printed = out.rstrip("\n")
    if measured:
        assert without_numbers(printed) == without_numbers(shown)
    else:
        assert printed == shown
