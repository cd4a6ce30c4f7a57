"""Report pages: self-contained, correct, safe for any content, reproducible."""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.reports.pages.page import build
from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.explanation import Divergence
from scaleproof.simulator.run.files import save
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.reconcile import reconcile
from tests.reports.example import CASES, edit, make_run, write_results
from tests.reports.sized import size_px
from tests.reports.studies import STUDY, without_pictures, write_study

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


@pytest.fixture
def not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pictures(monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["built_results", "built_study"])
def test_pages_contain_no_external_references(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    page = _Page(folder / "index.html")
    assert all(reference.startswith(("data:", "#")) for reference in page.references)
    links = [reference[1:] for reference in page.references if reference.startswith("#")]
    source = (folder / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{link}"' in source for link in links)
    assert "link" not in page.tags
    assert "default-src 'none'" in html.unescape(source[:2000])


def test_the_content_security_policy_allows_only_own_scripts(built_study: Path) -> None:
    source = (built_study / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    assert len(hashes) == 3
    assert f"script-src {' '.join(hashes)}" in html.unescape(source[:2000])


def test_the_page_has_its_headline_and_all_cases(built_results: Path) -> None:
    text = _Page(built_results / "index.html").text
    assert "off by 6.7 % at the median; the worst, server-4, by 14 %." in text.replace("\u202f", " ")
    for case in CASES:
        assert case[0] in text
    assert "rank 3 (stage 3) was killed by signal 9 in backward of step 4" in text
    for made_from in ("workstation", "this-machine", "2026-01-31 12:00 UTC", "2.13.0"):
        assert made_from in text


def test_the_page_of_a_study_has_all_sections_and_commands_to_reproduce_it(built_study: Path) -> None:
    page = _Page(built_study / "index.html")
    for heading in (
        "Which is fastest", "Where the time goes", "Which is fastest where", "What fits", "What would help most",
        "Time, memory and cost", "One step, rank by rank", "Sources",
    ):  # fmt: skip
        assert heading in page.text
    for made_from in ("made up for tests", "scaleproof sweep study.yaml --intervals --out again", "pandas"):
        assert made_from in page.text
    sheets = {path.name for path in (built_study / "tables").iterdir()}
    assert sheets == {"points.csv", "breakdown.csv", "memory.csv", "sensitivity.csv"}


def test_still_pictures_of_figures_are_not_empty(built_results: Path, built_study: Path) -> None:
    names = {path.name for path in (built_results / "figures").glob("*.png")}
    assert {"accuracy.png", "errors.png", "scaling.png", "breakdown.png"} < names
    assert len(names) == 4 + 8
    names = {path.stem for path in (built_study / "figures").glob("*.png")}
    assert names == {path.stem for path in (built_study / "figures").glob("*.svg")}
    expected = (
        "alternatives",
        "throughput",
        "cost",
        "efficiency",
        "breakdown",
        "crossover",
        "memory",
        "memory-scaling",
        "sensitivity",
        "pareto-memory",
        "pareto-cost",
    )
    assert names == {*expected, "timeline-01-ring", "timeline-02-servers"}
    for path in [*(built_results / "figures").glob("*.png"), *(built_study / "figures").glob("*.png")]:
        width, height = size_px(path.read_bytes())
        assert width == 1600
        assert height > 200
        assert path.stat().st_size > 5_000


@pytest.mark.usefixtures("not_drawn")
def test_rebuilding_gives_identical_files_and_no_temporary_ones(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:2])
    build(tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    build(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.usefixtures("not_drawn")
def test_markup_in_results_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"
    names = dict.fromkeys(("created", "host", "cluster"), evil)
    write_results(tmp_path, [("a", "pipeline", 2, 0, 0.1, 0.05)], environment={evil: evil}, **names)

    def poison(plain: dict[str, Any]) -> None:
        case = plain["cases"][0]
        case.update(scenario=evil, family=evil, strategy=evil, failure=evil)
        case["predicted"].update(provenance={evil: evil}, baseline={"weak": evil}, scenario=evil)
        plain["cases"] += [{"scenario": evil, "predicted": {"origin": evil}, "folder": evil}, evil]

    edit(tmp_path, poison)
    page = _Page(build(tmp_path).path)
    figures = len(list((tmp_path / "figures").glob("*.png")))
    assert page.tags.count("img") == figures
    assert page.tags.count("script") == 3 + figures
    assert evil in page.text
    assert html.escape(evil, quote=False)[:8] in (tmp_path / "index.html").read_text()
    for path in (tmp_path / "figures").iterdir():
        assert re.fullmatch(r"[a-z0-9-]+\.(png|svg)", path.name)


def kept_on(page: _Page, tmp_path: Path) -> list[Scenario]:
    """The scenarios that a page can have."""
    found = []
    for number, reference in enumerate(page.references):
        if reference.startswith("data:application/yaml;base64,"):
            path = tmp_path / f"saved-{number}.yaml"
            path.write_bytes(base64.b64decode(reference.partition(",")[2]))
            found.append(load(path))
    return found


@pytest.mark.usefixtures("not_drawn")
def test_commands_on_the_page_reproduce_a_reconcile(tmp_path: Path) -> None:
    scenarios = [load("pipeline-2"), load("ring-4", ["name=ring 4; rm -r ~"])]

    def measure(scenario: Scenario) -> Run:
        return replace(predict(scenario), origin="measured", spans=None, provenance={"on": "local $(id)", "torch": "2.13.0"})

    reconcile(scenarios, measure, tmp_path, 0.1, lambda _: None)
    page = _Page(build(tmp_path).path)
    assert kept_on(page, tmp_path) == scenarios
    command = "scaleproof reconcile pipeline-2.yaml ring-4-rm-r.yaml --on 'local $(id)' --max-error 0.1 --out again"
    assert command in page.text
    for expected in ("Page made with", "measured_layers:", "Torch 2.13.0", "Measured on local $(id)"):
        assert expected in page.text


@pytest.mark.usefixtures("not_drawn")
def test_commands_on_the_page_reproduce_a_prediction(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert scaleproof.main(["predict", "resnet50-ring-p100", "--set", "strategy.workers=2", "--out", str(out)]) == 0
    page = _Page(build(out).path)
    assert kept_on(page, tmp_path) == [load("resnet50-ring-p100", ["strategy.workers=2"])]
    assert "scaleproof predict resnet50-ring-p100.yaml --out again scaleproof report again" in page.text
    assert "cluster.device Peaks, memory and bandwidth from NVIDIA" in page.text


@pytest.mark.usefixtures("not_drawn")
def test_an_invalid_scenario_is_shown_as_its_text(tmp_path: Path) -> None:
    write_results(tmp_path, CASES[:1])
    (tmp_path / "runs/ring-2/scenario.yaml").write_text("<script>: [")
    assert "<script>: [" in _Page(build(tmp_path).path).text


def test_a_folder_without_readable_cases_gives_a_page_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "reconcile.json").write_text('{"version": 1, "ca')
    built = build(tmp_path)
    assert built.is_empty
    text = _Page(built.path).text
    assert "Nothing to show: no run in this folder could be read." in text
    assert "reconcile.json cannot be read" in text
    (tmp_path / "reconcile.json").write_text(json.dumps({"version": 1, "cases": []}))
    assert "Nothing to show" in _Page(build(tmp_path).path).text


@pytest.mark.usefixtures("not_drawn")
def test_an_empty_folder_gives_a_page_with_a_note_and_can_be_filled_later(tmp_path: Path) -> None:
    for _ in range(2):
        built = build(tmp_path)
        assert built.is_empty
        assert "the folder is empty" in _Page(built.path).text
    write_study(tmp_path, intervals=False)
    assert not build(tmp_path).is_empty


def test_an_incomplete_study_gives_a_page_with_a_note(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((swept / "study.json").read_bytes())
    built = build(tmp_path)
    assert built.is_empty
    text = _Page(built.path).text
    assert "Nothing to show yet: this folder has no point of a study" in text
    assert "0 of 12 points are complete" in text
    (tmp_path / "part-000001.parquet").write_bytes(b"PAR1half")
    assert "part-000001.parquet cannot be read" in _Page(build(tmp_path).path).text


@pytest.mark.usefixtures("not_drawn")
def test_markup_in_a_study_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><b>=&"
    study = copy.deepcopy(dict(STUDY))
    study["scenario"]["name"] = "x<script>y"
    study["scenario"]["model"]["name"] = study["scenario"]["cluster"]["name"] = evil
    study["scenario"]["cluster"]["source"] = evil
    study["axes"]["strategy"] = {evil: {"kind": "data_parallel"}, "=1+1": {"kind": "parameter_server", "servers": 2}}
    study["axes"]["strategy.workers"] = [2, 4]
    page = _Page(build(write_study(tmp_path, study, intervals=False)).path)
    figures = len(list((tmp_path / "figures").glob("*.png")))
    assert page.tags.count("script") == 3 + figures
    assert "b" not in page.tags
    assert evil in page.text
    assert "'=1+1" in (tmp_path / "tables" / "points.csv").read_text()


def test_a_folder_without_results_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("somebody's own")
    with pytest.raises(InputError, match="no results here"):
        build(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        build(tmp_path / "nowhere")
    assert (tmp_path / "index.html").read_text() == "somebody's own"


def test_the_exit_status_is_nonzero_without_results(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"
    assert scaleproof.main(["report", str(tmp_path / "index.html")]) == 2


def test_a_folder_that_cannot_be_written_gives_a_one_line_error(tmp_path: Path) -> None:
    save(make_run("predicted", CASES[0]), tmp_path)
    (tmp_path / "tables").write_text("a file where the folder would be")
    with pytest.raises(RunError, match="the page cannot be written"):
        build(tmp_path)
    assert not (tmp_path / "index.html").exists()


@pytest.mark.usefixtures("not_drawn")
def test_the_explanation_of_a_difference_is_above_its_timelines(tmp_path: Path) -> None:
    folder = write_results(tmp_path, CASES[:1])
    parting = asdict(Divergence(0, (0, 1), "backward", stage=-1, microbatch=-1, predicted_s=0.01, measured_s=0.02))
    expected = {"sentences": ["backward takes <twice> as long"], "parts": [], "partings": [parting]}

    def explained(plain: dict[str, Any]) -> None:
        plain["cases"][0] |= {"explanation": expected, "inside": False}
        plain["cases"][0]["predicted"]["prediction_interval_s"] = [0.031, 0.0357]

    edit(folder, explained)
    text = _Page(build(folder).path).text
    assert "backward takes <twice> as long" in text
    assert "in the 90 % interval 0 of 1" in text
    assert "31.0 ms to 35.7 ms" in text
    assert (folder / "figures" / "timeline-01-ring-2.svg").is_file()
