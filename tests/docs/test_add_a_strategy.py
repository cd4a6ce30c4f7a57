"""docs/tutorial/add-a-strategy.md: its quotes equal the example, which is built, installed and run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import scaleproof

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "add-a-strategy.md").read_text()
EXAMPLE = ROOT / "examples" / "gossip-strategy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip would install: the contents of the wheel that the example builds."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=EXAMPLE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, *words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a Python module with the example's package installed in addition to this one."""
    environment = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=folder, env=environment)


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("*.*")), ids=lambda path: path.name)
def test_the_page_quotes_the_example_exactly(path: Path) -> None:
    (quoted,) = re.findall(rf"`{re.escape(path.name)}`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert quoted == path.read_text()


@pytest.mark.full
def test_the_examples_own_tests_pass_with_the_package_installed(installed: Path) -> None:
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE))
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_the_example_passes_mypy(installed: Path) -> None:
    done = run(installed, "mypy", "--strict", *map(str, EXAMPLE.glob("*.py")))
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_commands_of_the_example_print_what_the_page_shows(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = re.findall(r"^```console with the package\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert commands[0] == "pip install ./examples/gossip-strategy\n"
    for part in commands[1:]:
        command, _, shown = part.partition("\n")
        done = run(installed, *shlex.split(command), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == shown


def test_without_the_package_its_kind_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["predict", str(EXAMPLE / "gossip.yaml")]) == 2
    message = "gossip.yaml:9:12: strategy: unknown kind 'gossip'; give one of parameter_server"
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_schema_and_errors_of_the_example_look_like_builtin_ones(installed: Path) -> None:
    assert '"gossip": "#/$defs/Gossip"' in run(installed, "scaleproof", "schema").stdout
    done = run(installed, "scaleproof", "predict", str(EXAMPLE / "gossip.yaml"), "--set", "strategy.workers=0")
    assert done.stderr == "--set strategy.workers=0: strategy.workers: must be greater than 0, got 0\n"
