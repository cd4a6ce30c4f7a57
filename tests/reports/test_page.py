"""The page: self-contained, right, safe against what the folder says, the same when built twice."""

from __future__ import annotations

import base64
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from reports.page import build
from simulator.errors import InputError, RunError
from simulator.run import save

from .example import CASES, edit, failed_case, make_run, write_results
from .test_figures import size_px

_VOID = {"meta", "img", "br", "link", "hr", "input"}


class _Page(HTMLParser):
    """Text, tags and references of a page; checks that tags are closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of eight scenarios and a failed one, with its page."""
    folder = write_results(tmp_path_factory.mktemp("built"))
    edit(folder, lambda plain: plain["cases"].append(failed_case()))
    assert build(folder) == folder / "index.html"
    return folder


def test_the_page_refers_to_nothing_outside_itself(built: Path) -> None:
    page = _Page(built / "index.html")
    assert len(page.references) == 3 + 8 + 3
    assert all(reference.startswith("data:") for reference in page.references)
    source = (built / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|<script|<link", source)


def test_headline_and_cases_are_on_the_page(built: Path) -> None:
    text = _Page(built / "index.html").text
    assert "agree within 6.7 % at the median over 8 runs; the worst, server-4, is off by 14 %." in text.replace("\u202f", " ")
    for case in CASES:
        assert case[0] in text
    assert "rank 3 (stage 3) was killed by signal 9 in backward of step 4" in text
    for made_from in ("workstation", "this-machine", "2026-01-31 12:00 UTC", "2.13.0", "runs/hybrid-4"):
        assert made_from in text


def test_figures_are_pictures_with_something_on_them(built: Path) -> None:
    names = sorted(path.name for path in (built / "figures").glob("*.png"))
    assert names[:3] == ["accuracy.png", "breakdown.png", "scaling.png"]
    assert len(names) == 3 + 8
    assert len(list((built / "figures").glob("timeline-*.svg"))) == 8
    for path in (built / "figures").glob("*.png"):
        width, height = size_px(path.read_bytes())
        assert width == 1600
        assert height > 300
        assert path.stat().st_size > 20_000


def test_tables_on_the_page_are_the_files(built: Path) -> None:
    sheets = [reference for reference in _Page(built / "index.html").references if reference.startswith("data:text/csv")]
    written = {path.read_bytes() for path in (built / "tables").iterdir()}
    assert {base64.b64decode(sheet.partition(",")[2]) for sheet in sheets} == written
    assert len(written) == 3


def test_building_twice_gives_the_same_and_leaves_no_parts(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:2])
    build(tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    build(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first
    assert not list(tmp_path.rglob("*.part"))


def test_markup_in_the_folder_is_text_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"
    names = dict.fromkeys(("created", "host", "cluster"), evil)
    write_results(tmp_path, [("a", "pipeline", 2, 0, 0.1, 0.05)], environment={evil: evil}, **names)

    def poison(plain: dict[str, Any]) -> None:
        case = plain["cases"][0]
        case.update(scenario=evil, family=evil, strategy=evil, failure=evil)
        case["predicted"].update(provenance={evil: evil}, baseline={"weak": evil}, scenario=evil)
        plain["cases"] += [{"scenario": evil, "predicted": {"origin": evil}, "folder": evil}, evil]

    edit(tmp_path, poison)
    page = _Page(build(tmp_path))
    assert "script" not in page.tags
    assert page.tags.count("img") == len(list((tmp_path / "figures").glob("*.png")))
    assert evil in page.text
    assert html.escape(evil, quote=False)[:8] in (tmp_path / "index.html").read_text()
    for path in (tmp_path / "figures").iterdir():
        assert re.fullmatch(r"[a-z0-9-]+\.(png|svg)", path.name)


def test_a_name_that_is_no_unicode_is_written_as_far_as_it_goes(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:1])
    edit(tmp_path, lambda plain: plain["cases"][0].update(scenario="half \ud800"))
    assert "half ?" in _Page(build(tmp_path)).text


def test_a_single_prediction_has_a_page(tmp_path: Path) -> None:
    save(make_run("predicted", CASES[4]), tmp_path / "predicted")
    text = _Page(build(tmp_path)).text
    assert "pipeline-2 is predicted to train at" in text
    assert "not measured" in text
    assert not (tmp_path / "figures/accuracy.png").exists()


def test_a_folder_without_readable_cases_has_a_page_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "reconcile.json").write_text('{"version": 1, "ca')
    text = _Page(build(tmp_path)).text
    assert "Nothing to show: no run in this folder could be read." in text
    assert "reconcile.json cannot be read" in text
    (tmp_path / "reconcile.json").write_text(json.dumps({"version": 1, "cases": []}))
    assert "Nothing to show" in _Page(build(tmp_path)).text


def test_a_folder_of_something_else_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results here"):
        build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    save(make_run("predicted", CASES[0]), tmp_path)
    (tmp_path / "tables").write_text("a file where the folder would be")
    with pytest.raises(RunError, match="the page cannot be written"):
        build(tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_what_explains_a_difference_stands_above_its_timelines(tmp_path: Path) -> None:
    folder = write_results(tmp_path, CASES[:1])
    parting = {"rank": 0, "measured_ranks": [0, 1], "phase": "backward", "predicted_s": 0.01, "measured_s": 0.02}
    told = {"sentences": ["backward takes <twice> as long"], "parts": [], "partings": [parting]}

    def explained(plain: dict[str, Any]) -> None:
        plain["cases"][0] |= {"explanation": told, "inside": False}
        plain["cases"][0]["predicted"]["prediction_interval_s"] = [0.031, 0.0357]

    edit(folder, explained)
    text = _Page(build(folder)).text
    assert "backward takes <twice> as long" in text
    assert "measured inside the forecast's 90 % interval 0 of 1" in text
    assert "31.0 to 35.7" in text
    assert (folder / "figures" / "timeline-01-ring-2.svg").stat().st_size > 10_000
