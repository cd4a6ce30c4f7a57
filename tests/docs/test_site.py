"""`make site` builds without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
# what a browser loads without being clicked: pictures, scripts, styles, fonts, frames
_LOADED = re.compile(r'<(?:img|script|iframe|source|video)\b[^>]*?\bsrc="([^"]+)"|<link\b[^>]*?\bhref="([^"]+)"|url\(([^)]+)\)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_the_site_has_every_page_and_loads_nothing_from_another_host(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    names = {path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html") for path in sources}
    assert {path.relative_to(site) for path in site.rglob("*.html")} == names | {Path("404.html")}
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        loaded = [next(filter(None, match)).strip("\"'") for match in _LOADED.findall(text)]
        assert [address for address in loaded if re.match(r"(?:https?:)?//", address)] == []
        # the theme would fetch mermaid for such blocks
        assert 'class="mermaid"' not in text
