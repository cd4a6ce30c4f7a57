"""The installed package: one importable name, which predicts in an empty environment on each supported Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.validator.verdicts import at_night

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """A Python of a version, on the path or installed by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
        if done.stdout.strip() == f"({version.replace('.', ', ')})":
            return candidate
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def lowest() -> list[str]:
    """The dependencies of the base installation, each at the lowest version that is declared."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [requirement.replace(">=", "==") for requirement in project["dependencies"]]


def installed(python: str, folder: Path, requirements: list[str]) -> Path:
    """The Python of a new environment with some requirements."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin" / "python"
    subprocess.run([str(own), "-m", "pip", "install", "--quiet", *requirements], check=True, capture_output=True)
    return own


def outside(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in an empty folder, without the environment of the tests."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [str(python), *arguments], cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )


def test_wheel_and_source_distribution_contain_one_package(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"scaleproof"}
    with tarfile.open(source) as archive:
        packed = {member.name.split("/", 1)[1] for member in archive.getmembers() if "/" in member.name}
        assert not any(member.issym() for member in archive.getmembers())
    # what a wheel is built of that is built from the source distribution
    assert {name for name in names if name.startswith("scaleproof/")} <= packed
    for folder in ("simulator", "validator", "reports", "proof", "commands"):
        files = {f"scaleproof/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
        assert files
        assert files <= names
    assert "scaleproof/scenarios/devices/h100-80gb-sxm.yaml" in names


@pytest.mark.full
@pytest.mark.parametrize("version", [PYTHONS[0], *at_night(*PYTHONS[1:])])
def test_the_wheel_predicts_and_plans_in_an_empty_environment(version: str, built: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    (wheel,) = built.glob("*.whl")
    own = installed(python, tmp_path / "environment", [str(wheel)])
    folder = tmp_path / "empty"
    for name in ("simulator", "validator", "reports", "proof", "commands", "scenarios"):
        assert outside(own, folder, "-c", f"import {name}").returncode != 0
    predicted = outside(own, folder, "-m", "scaleproof", "predict", "resnet50-ring-p100")
    assert predicted.returncode == 0, predicted.stderr
    assert "samples/s" in predicted.stdout
    planned = outside(own, folder, "-m", "scaleproof", "plan", "gpt3-175b-hybrid-selene", "--gpus", "64")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.full
def test_the_lowest_declared_versions_predict_and_plan(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    own = installed(sys.executable, tmp_path / "environment", [str(wheel), *lowest()])
    predicted = outside(own, tmp_path / "empty", "-m", "scaleproof", "predict", "megatron-175b-3d-selene")
    assert predicted.returncode == 0, predicted.stderr
    planned = outside(own, tmp_path / "empty", "-m", "scaleproof", "plan", "gpt3-175b-hybrid-selene", "--gpus", "64")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.full
def test_a_command_whose_extra_is_missing_names_the_extra(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    own = installed(sys.executable, tmp_path / "environment", [str(wheel)])
    for extra, arguments in {
        "reports": ("timeline", "resnet50-ring-p100", "--out", "step.svg"),
        "studies": ("sweep", "resnet50-ring-or-servers", "--out", "out"),
        "validator": ("measure", "ring-2"),
        "explorer": ("explore", "--no-browser"),
    }.items():
        run = outside(own, tmp_path / "empty", "-m", "scaleproof", *arguments)
        assert run.returncode == 1, (arguments, run.stdout, run.stderr)
        assert re.fullmatch(rf".*pip install 'scaleproof\[{extra}\]'\n", run.stderr), (arguments, run.stderr)
