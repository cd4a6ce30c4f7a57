"""Missing packages are installed from wheels, or reported in one line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from scaleproof.proof.gpu_check import dependencies
from scaleproof.simulator.common.errors import MissingDependencyError

NOWHERE = "a_package_that_is_nowhere"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for wheels, on a machine that lacks one carried package."""
    monkeypatch.setattr(dependencies, "CARRIED", {NOWHERE: "nowhere"})
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def test_nothing_is_installed_if_nothing_is_missing(tmp_path: Path) -> None:
    assert dependencies.provide(tmp_path / "site", tmp_path / "wheels") is None
    assert not list(tmp_path.iterdir())


def test_installed_wheels_take_precedence_on_the_path(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(site: Path, _: Path, packages: list[str]) -> str:
        assert packages == ["nowhere"]
        site.mkdir()
        (site / f"{NOWHERE}.py").write_text("here = True\n")
        return ""

    monkeypatch.setattr(dependencies, "_install", install)
    (wheels / f"{NOWHERE}-1.0-py3-none-any.whl").touch()

    assert dependencies.provide(tmp_path / "site", wheels) == tmp_path / "site"
    assert importlib.import_module(NOWHERE).here
    assert sys.path[0] == str(tmp_path / "site")
    del sys.modules[NOWHERE]


def test_missing_wheels_give_an_error_with_instructions(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=rf"{NOWHERE} missing, and there are no wheels in .*; run 'make"):
        dependencies.provide(tmp_path / "site", wheels)


def test_wheels_that_fail_to_install_give_a_one_line_error(wheels: Path, tmp_path: Path) -> None:
    (wheels / "another-1.0-py3-none-any.whl").touch()
    with pytest.raises(MissingDependencyError, match=r"installing from .*wheels/ failed: .*; run 'make gpu-wheels") as caught:
        dependencies.provide(tmp_path / "site", wheels)
    assert "\n" not in str(caught.value)


def test_packages_without_wheels_must_be_installed_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "_OWN", ("torch", NOWHERE))
    with pytest.raises(MissingDependencyError, match=f"lacks {NOWHERE}; install them"):
        dependencies.provide(tmp_path / "site", tmp_path / "wheels")
