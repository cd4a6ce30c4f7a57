"""What is missing comes from wheels, and where it does not, one line says what to do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import MissingDependencyError
from scaleproof.validator.calibration.gpu_check import dependencies

NOWHERE = "a_package_that_is_nowhere"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for wheels, on a machine that lacks one carried package."""
    monkeypatch.setattr(dependencies, "CARRIED", (NOWHERE,))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def test_nothing_is_installed_where_nothing_is_missing(tmp_path: Path) -> None:
    assert dependencies.provide(tmp_path / "site", tmp_path / "wheels") is None
    assert not list(tmp_path.iterdir())


def test_what_wheels_bring_is_imported_before_all_else(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(site: Path, _: Path) -> str:
        site.mkdir()
        (site / f"{NOWHERE}.py").write_text("here = True\n")
        return ""

    monkeypatch.setattr(dependencies, "_install", install)
    (wheels / f"{NOWHERE}-1.0-py3-none-any.whl").touch()

    assert dependencies.provide(tmp_path / "site", wheels) == tmp_path / "site"
    assert importlib.import_module(NOWHERE).here
    assert sys.path[0] == str(tmp_path / "site")
    del sys.modules[NOWHERE]


def test_without_wheels_the_way_to_get_them_is_told(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=rf"{NOWHERE} missing, and there are no wheels in .*; run 'make"):
        dependencies.provide(tmp_path / "site", wheels)


def test_wheels_that_do_not_install_are_told_in_one_line(wheels: Path, tmp_path: Path) -> None:
    (wheels / "another-1.0-py3-none-any.whl").touch()
    with pytest.raises(MissingDependencyError, match=r"installing from .*wheels/ failed: .*; run 'make gpu-wheels") as caught:
        dependencies.provide(tmp_path / "site", wheels)
    assert "\n" not in str(caught.value)


def test_what_is_not_carried_is_for_the_machine_to_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "_OWN", ("torch", NOWHERE))
    with pytest.raises(MissingDependencyError, match=f"lacks {NOWHERE}; install them"):
        dependencies.provide(tmp_path / "site", tmp_path / "wheels")
