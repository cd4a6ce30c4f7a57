"""What the tests of reports share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from reports.page import build

from .example import edit, failed_case, write_results
from .studies import write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FLAGS: Final = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of eight scenarios and one that failed; tests only read it."""
    folder = write_results(tmp_path_factory.mktemp("eight"))
    edit(folder, lambda plain: plain["cases"].append(failed_case()))
    return folder


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder: two strategies on up to eight GPUs, by two networks; tests only read it."""
    return write_study(tmp_path_factory.mktemp("swept"))


@pytest.fixture(scope="session")
def built_results(eight: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of eight scenarios and a failed one, with its page."""
    folder = tmp_path_factory.mktemp("built_results") / "eight"
    shutil.copytree(eight, folder)
    assert build(folder) == (folder / "index.html", False)
    return folder


@pytest.fixture(scope="session")
def built_study(swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's folder, with its page."""
    folder = tmp_path_factory.mktemp("built_study") / "swept"
    shutil.copytree(swept, folder)
    assert build(folder) == (folder / "index.html", False)
    return folder


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
