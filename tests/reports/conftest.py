"""Fixtures for the tests of reports."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from scaleproof.reports.pages.page import build
from tests.reports.example import edit, failed_case, write_results
from tests.reports.studies import write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FLAGS: Final = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills once for all concurrent test processes; tests only read it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    shared = factory.getbasetemp().parent
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            # left by another process that failed
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of eight scenarios and one that failed."""

    def make(folder: Path) -> None:
        write_results(folder)
        edit(folder, lambda plain: plain["cases"].append(failed_case()))

    return once(tmp_path_factory, "eight", make)


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder: two strategies on up to eight GPUs, by two networks."""
    return once(tmp_path_factory, "swept", write_study)


@pytest.fixture(scope="session")
def built_results(eight: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of eight scenarios and a failed one, with its page."""
    return once(tmp_path_factory, "built_results", partial(_built, eight))


@pytest.fixture(scope="session")
def built_study(swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's folder, with its page."""
    return once(tmp_path_factory, "built_study", partial(_built, swept))


def _built(results: Path, folder: Path) -> None:
    """Copies results, and makes their page."""
    shutil.copytree(results, folder, dirs_exist_ok=True)
    assert build(folder) == (folder / "index.html", False)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's browser, one for all tests."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("pages are opened by Chromium; install it, as .ci/run does")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_FLAGS)
        yield browser
        browser.close()
