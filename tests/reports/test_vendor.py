"""Vendored files equal their published releases and include licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

from scaleproof.reports.pages import page

VENDOR = Path(page.__file__).parents[1] / "vendor"
VERSION = "4.1.1"
SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"


def test_the_vendored_library_has_the_published_hash() -> None:
    library = VENDOR / "plotly-basic.min.js"
    assert hashlib.sha256(library.read_bytes()).hexdigest() == SHA256
    assert f"plotly.js (basic - minified) v{VERSION}" in library.read_text(encoding="utf-8")[:200]
    assert f"version {VERSION}" in (VENDOR / "README.md").read_text(encoding="utf-8")


def test_the_vendored_library_can_be_inlined_in_a_script_element() -> None:
    assert "</script" not in page._library().lower()
