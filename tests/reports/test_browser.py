"""Report pages in a browser: figures have data, work with keyboard and mouse, and send no requests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from scaleproof.reports.pages.page import build
from scaleproof.simulator.analysis.study.sweep import sweep
from tests.reports.studies import STUDY, without_pictures
from tests.validator.verdicts import in_bulk

# a browser takes seconds for each page
pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NETWORKS = {"from": "1 Gbit/s", "to": "100 Gbit/s", "points": 20, "log": True}
LATENCIES = {"from": "1 us", "to": "1 ms", "points": 10, "log": True}


class Opened:
    """A page that is open. said: its log, and its requests to other hosts."""

    def __init__(self, browser: Browser, path: Path, **settings: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._requested(request.url))
        self.page.goto(path.as_uri())

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.said.append(url)

    def figure(self, name: str) -> Locator:
        """A figure that is drawn."""
        figure = self.page.locator(f'figure[aria-labelledby="figure-{name}"]')
        figure.scroll_into_view_if_needed()
        figure.locator(".canvas .main-svg").first.wait_for()
        return figure

    def range_x(self, figure: Locator) -> list[float]:
        found: list[float] = figure.locator(".canvas").evaluate("(canvas) => canvas._fullLayout.xaxis.range.map(Number)")
        return found


@pytest.fixture(scope="module")
def study(chromium: Browser, built_study: Path) -> Iterator[Opened]:
    opened = Opened(chromium, built_study / "index.html")
    yield opened
    opened.context.close()


@pytest.fixture(scope="module")
def results(chromium: Browser, built_results: Path) -> Iterator[Opened]:
    opened = Opened(chromium, built_results / "index.html", color_scheme="dark")
    yield opened
    opened.context.close()


@pytest.mark.parametrize("kind", ["study", "results"])
def test_every_figure_has_data_and_the_console_has_no_messages(kind: str, request: pytest.FixtureRequest) -> None:
    opened: Opened = request.getfixturevalue(kind)
    figures = opened.page.locator("figure.plot")
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        figures.nth(i).locator(".canvas .main-svg").first.wait_for()
        assert figures.nth(i).locator(".canvas .trace path, .canvas .point path").count() > 0
    assert figures.count() == {"study": 13, "results": 12}[kind]
    assert opened.said == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_hover_text_describes_the_point(study: Opened) -> None:
    figure = study.figure("throughput")
    figure.locator(".scatterlayer .point").nth(1).hover(force=True)
    hover = figure.locator(".hoverlayer .hovertext")
    hover.first.wait_for()
    assert "ring" in (hover.first.text_content() or "")
    assert "samples/s" in (hover.first.text_content() or "")


def test_keys_zoom_move_and_reset_figures(study: Opened) -> None:
    figure = study.figure("timeline-02-servers")
    whole = study.range_x(figure)
    figure.locator(".canvas").focus()
    study.page.keyboard.press("+")
    closer = study.range_x(figure)
    assert whole[0] < closer[0] < closer[1] < whole[1]
    study.page.keyboard.press("ArrowRight")
    assert study.range_x(figure)[0] > closer[0]
    study.page.keyboard.press("0")
    assert study.range_x(figure) == pytest.approx(whole)
    figure.get_by_role("button", name="Zoom in").press("Enter")
    assert study.range_x(figure) == pytest.approx(closer)
    figure.get_by_role("button", name="Show all").click()


def test_all_figures_with_a_chooser_follow_its_choice(study: Opened) -> None:
    throughput, efficiency = study.figure("throughput"), study.figure("efficiency")
    before = throughput.locator(".finding").text_content()
    throughput.locator("select").select_option("10 Gbit/s")
    assert efficiency.locator("select").input_value() == "10 Gbit/s"
    assert throughput.locator(".finding").text_content() != before
    throughput.locator("select").select_option("40 Gbit/s")
    assert throughput.locator(".finding").text_content() == before


@pytest.mark.parametrize("scheme", ["dark", *in_bulk("light")])
@pytest.mark.parametrize("kind", ["built_study", "built_results"])
def test_axe_finds_no_serious_accessibility_violation(
    chromium: Browser, kind: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened = Opened(chromium, request.getfixturevalue(kind) / "index.html", color_scheme=scheme)
    # through the debugger, which the content security policy does not restrict
    opened.context.new_cdp_session(opened.page).send("Runtime.evaluate", {"expression": Axe().axe_script})
    found = opened.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    opened.context.close()
    faults = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in faults] == []


@pytest.mark.parametrize("width_px", [360, *in_bulk(800)])
@pytest.mark.parametrize("kind", ["built_study", "built_results"])
def test_pages_fit_a_phone_and_a_tablet(chromium: Browser, kind: str, width_px: int, request: pytest.FixtureRequest) -> None:
    view = {"viewport": {"width": width_px, "height": 740}, "has_touch": True, "color_scheme": "dark"}
    opened = Opened(chromium, request.getfixturevalue(kind) / "index.html", **view)
    figures = opened.page.locator("figure.plot")
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        figures.nth(i).locator(".canvas .main-svg").first.wait_for()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width_px
    opened.context.close()


def test_pages_are_readable_without_scripts(chromium: Browser, built_study: Path) -> None:
    bare = Opened(chromium, built_study / "index.html", java_script_enabled=False)
    assert bare.page.locator("img.still").first.is_visible()
    assert bare.page.locator(".canvas").first.is_hidden()
    bare.context.close()


def test_printed_pages_have_still_pictures_and_source_files(study: Opened) -> None:
    file = study.page.locator("details pre").first
    assert file.is_hidden()
    study.page.emulate_media(media="print")
    assert study.page.locator("img.still").first.is_visible()
    assert study.page.locator(".canvas").first.is_hidden()
    assert file.is_visible()
    study.page.emulate_media(media="screen")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 2,000 points, whose pictures are not drawn but as large."""
    folder = tmp_path_factory.mktemp("large")
    axes = {**STUDY["axes"], "strategy.workers": [2, 4, 6, 8, 10], "cluster.network.bandwidth": NETWORKS}
    sweep({"scenario": STUDY["scenario"], "axes": {**axes, "cluster.network.latency": LATENCIES}}, folder)
    # intervals take longer to compute than to show
    for part in folder.glob("part-*.parquet"):
        found = pd.read_parquet(part)
        found.assign(low_s=found["step_time_s"] / 1.1234567, high_s=found["step_time_s"] * 1.1234567).to_parquet(part)
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch, 25_000)
        return build(folder).path


def test_a_page_of_a_study_is_below_1_megabyte_without_its_pictures_and_scripts(built_study: Path) -> None:
    text = (built_study / "index.html").read_text(encoding="utf-8")
    assert len(re.sub(r"<script>.*?</script>|data:image/[^\"]*", "", text, flags=re.DOTALL)) < 1e6


@pytest.mark.full
def test_a_page_of_2000_points_is_below_4_megabytes(large: Path) -> None:
    assert large.stat().st_size < 4e6


@pytest.mark.nightly
def test_a_page_of_2000_points_is_interactive_in_time(chromium: Browser, large: Path) -> None:
    def soon_s() -> float:
        opened = Opened(chromium, large)
        mark = "performance.getEntriesByName('interactive').map((one) => one.startTime)"
        until_s = time.monotonic() + 30
        while not (found := opened.page.evaluate(mark)) and time.monotonic() < until_s:
            opened.page.wait_for_timeout(20)
        opened.context.close()
        return float(found[0]) / 1e3

    assert min(soon_s() for _ in range(5)) < 2
