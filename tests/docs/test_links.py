"""Links, pictures and anchors in README.md and docs lead somewhere, and README.md leads to every page."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def prose(page: Path) -> str:
    """A page's text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[tuple[str, Path, str]]:
    """Each relative link of a page: as written, the file it leads to, and the anchor there."""
    links = [link for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]
    parts = [(link, *link.partition("#")[::2]) for link in links]
    return [(link, Path(os.path.normpath(page.parent / path)) if path else page, anchor) for link, path, anchor in parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_the_page_lead_to_files_and_headings(page: Path) -> None:
    broken = [
        link
        for link, target, anchor in targets(page)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = {PAGES[0]}, {PAGES[0]}
    while new:
        new = {target for page in new for _, target, _ in targets(page) if target.suffix == ".md" and target.exists()} - reached
        reached |= new
    assert {page for page in PAGES if page.name != "CHANGELOG.md"} <= reached


def test_every_picture_is_shown() -> None:
    shown = {target for page in PAGES for _, target, _ in targets(page)}
    pictures = {path for folder in ("images", "pictures") for path in (ROOT / "docs" / folder).iterdir()}
    assert pictures <= shown


@pytest.mark.parametrize("folder", ["docs", *(path.name for path in sorted((ROOT / "docs").iterdir()) if path.is_dir())])
def test_folders_of_pages_are_small(folder: str) -> None:
    path = ROOT / "docs" if folder == "docs" else ROOT / "docs" / folder
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(("_", "."))]
    assert folder == "pictures" or len(entries) <= 16
