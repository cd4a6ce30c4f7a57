"""The explorer's page in a browser, also without a mouse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe

from scaleproof.simulator.common.units import format_short
from tests.validator.verdicts import in_bulk

# a browser takes seconds for each page
pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from playwright.sync_api import Page

RING, SERVERS, DEEP = "resnet50-ring-p100", "resnet50-servers-p100", "llama-2-7b-zero-bubble-a100"


def address(explorer: str, scenario: str, *sets: str) -> str:
    return f"{explorer}?{urlencode([('scenario', scenario), *(('set', one) for one in sets)])}"


def wait_for_full_answer(page: Page) -> None:
    """Waits until the full answer to the last change is shown."""
    page.wait_for_selector("#answer[aria-busy=false]")


def opened(page: Page, where: str) -> None:
    page.goto(where)
    wait_for_full_answer(page)


def throughput(page: Page) -> float:
    text = page.inner_text("#numbers [data-key=throughput] .value")
    return float(text.split()[0].replace(",", ""))


@pytest.mark.parametrize("scenario", [SERVERS, *in_bulk(RING, DEEP)])
def test_the_page_opens_with_a_forecast(page: Page, explorer: str, scenario: str) -> None:
    opened(page, address(explorer, scenario))
    assert throughput(page) > 0
    assert re.search(r"90 %: .* to ", page.inner_text("#numbers [data-key=throughput] .detail"))
    assert page.locator("#causes > div").count() >= 2
    assert page.locator("#memory > div").count() >= 3
    assert "-bound: " in page.inner_text("#bottleneck")
    colours = page.evaluate(
        """() => { const c = document.getElementById('timeline');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return new Set(Array.from({length: d.length / 4}, (_, i) => d.slice(4 * i, 4 * i + 3).join())).size }"""
    )
    assert colours > 5


def test_moving_a_slider_changes_the_forecast(page: Page, explorer: str) -> None:
    opened(page, address(explorer, SERVERS))
    before = throughput(page)
    slider = page.get_by_label("Bandwidth between nodes", exact=True)
    slider.focus()
    for _ in range(6):
        slider.press("ArrowRight")
    wait_for_full_answer(page)
    assert throughput(page) > 1.2 * before
    assert "cluster.network.bandwidth" in page.url
    assert "cluster.network.bandwidth" in page.inner_text("#command")


def test_back_forward_and_shared_addresses_restore_the_state(page: Page, explorer: str) -> None:
    opened(page, address(explorer, RING))
    one = throughput(page)
    page.get_by_label("GPUs, exactly", exact=True).fill("8")
    page.get_by_label("GPUs, exactly", exact=True).blur()
    wait_for_full_answer(page)
    two, shared = throughput(page), page.url
    assert two < one
    page.go_back()
    page.wait_for_function("text => document.querySelector('#numbers .value').textContent.startsWith(text)", arg=f"{one:,.0f}")
    page.go_forward()
    wait_for_full_answer(page)
    opened(page, explorer)
    opened(page, shared)
    assert throughput(page) == two
    assert page.get_by_label("GPUs, exactly", exact=True).input_value() == "8"
    page.get_by_role("button", name="Undo all changes").click()
    wait_for_full_answer(page)
    assert throughput(page) == one


def test_invalid_settings_are_marked_and_the_last_forecast_stays(page: Page, explorer: str) -> None:
    opened(page, address(explorer, RING))
    before = page.inner_text("#headline")
    settings = page.get_by_label("Settings", exact=True)
    settings.fill("strategy.workers=100")
    settings.blur()
    page.wait_for_selector("#problem:not([hidden])")
    assert "100 ranks for 64 devices" in page.inner_text("#problem")
    assert page.inner_text("#headline") == before
    assert page.get_by_label("GPUs", exact=True).get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Set cluster.nodes=25").click()
    wait_for_full_answer(page)
    assert page.is_hidden("#problem")
    assert "100 ×" in page.inner_text("#headline")
    assert page.locator("[aria-invalid]").count() == 0


def test_all_controls_work_with_the_keyboard_alone(page: Page, explorer: str) -> None:
    opened(page, address(explorer, DEEP))
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    ids = {"control-model", "control-gpus", "control-strategy-kind"}
    assert ids | {"scenario", "reset", "settings", "timeline", "copy", "yaml"} <= reached
    page.focus("#timeline")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#reading")
    assert "forward pass" in first
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#reading") != first
    page.focus("#control-training-recompute")
    page.keyboard.press("ArrowDown")
    wait_for_full_answer(page)
    assert "training.recompute" in page.url


def wait_for_everything(page: Page) -> None:
    """Waits until curves and comparison are shown as well."""
    page.wait_for_function("() => document.body.dataset.complete === document.body.dataset.shown")


def test_moving_the_slider_of_gpus_replans_and_says_what_follows(page: Page, explorer: str) -> None:
    opened(page, address(explorer, "llama-2-7b-fsdp-a100"))
    slider = page.get_by_label("GPUs", exact=True)
    slider.focus()
    slider.press("ArrowLeft")  # 48, which does not divide the batch of 128
    page.wait_for_selector("#problem:not([hidden])")
    assert "do not divide the global batch of 128" in page.inner_text("#problem")
    page.get_by_role("button", name="Use 32 GPUs").click()
    wait_for_full_answer(page)
    assert page.is_hidden("#problem")
    assert "32 ×" in page.inner_text("#headline")
    assert "strategy.workers=32" in page.inner_text("#note")
    assert "batch 128" in page.inner_text("#numbers [data-key=step] .help")


def test_a_point_of_the_scaling_curve_chooses_its_gpus(page: Page, explorer: str) -> None:
    opened(page, address(explorer, "llama-2-7b-fsdp-a100"))
    wait_for_everything(page)
    page.get_by_role("button", name=re.compile("^32 GPUs: ")).click()
    wait_for_full_answer(page)
    assert "32 ×" in page.inner_text("#headline")
    assert page.locator("#bandwidth polyline").count() == 2


def test_a_pinned_scenario_stays_in_the_address_and_is_compared(page: Page, explorer: str) -> None:
    opened(page, address(explorer, RING))
    page.get_by_role("button", name="Pin as A").click()
    slider = page.get_by_label("Bandwidth between nodes", exact=True)
    slider.focus()
    for _ in range(8):
        slider.press("ArrowLeft")
    wait_for_everything(page)
    assert "as fast as A (90 % interval" in page.inner_text("#comparison-words")
    assert "cluster.network.bandwidth" in page.inner_text("#comparison-tables")
    words, shared = page.inner_text("#comparison-words"), page.url
    opened(page, explorer)
    opened(page, shared)
    wait_for_everything(page)
    assert page.inner_text("#comparison-words") == words
    page.get_by_role("button", name="Unpin A").click()
    wait_for_full_answer(page)
    assert page.is_hidden("#comparison")


@pytest.mark.full
def test_the_best_plan_is_found_and_applied(page: Page, explorer: str) -> None:
    opened(page, address(explorer, "megatron-175b-3d-selene"))
    before = throughput(page)
    page.get_by_role("button", name="Find the best plan").click()
    page.get_by_role("button", name="Apply").first.click(timeout=60_000)
    wait_for_full_answer(page)
    assert "strategy" in page.url
    assert throughput(page) > before


def test_scenarios_and_models_are_searched_by_typing(page: Page, explorer: str) -> None:
    opened(page, address(explorer, RING))
    scenario = page.get_by_label("Scenario", exact=True)
    scenario.click()
    assert page.get_by_role("group", name="Language models").is_visible()
    scenario.fill("mixtral experts")
    assert page.locator("#scenario-list [role=option]").count() == 1
    scenario.press("Enter")
    wait_for_full_answer(page)
    assert "mixtral-8x7b" in page.inner_text("#headline")
    page.get_by_label("Model", exact=True).fill("nothing like it")
    assert "Nothing matches" in page.inner_text("#control-model-list")
    page.keyboard.press("Escape")
    assert page.get_by_label("Model", exact=True).input_value() == "mixtral-8x7b"


@pytest.mark.full
def test_terms_are_explained_on_focus(page: Page, explorer: str) -> None:
    opened(page, address(explorer, "megatron-175b-3d-selene"))
    page.locator("label[for=control-strategy-tensor] + .term").focus()
    assert page.inner_text("#tip").startswith("Tensor parallelism")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


@pytest.mark.parametrize("scheme", ["dark", *in_bulk("light")])
def test_axe_finds_no_serious_accessibility_violation(page: Page, explorer: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    pinned = urlencode([("a", "?scenario=gpt3-175b-servers-selene")])
    opened(page, f"{address(explorer, 'gpt3-175b-servers-selene', 'cluster.network.latency=20 us')}&{pinned}")
    wait_for_everything(page)
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")] == []


def test_the_theme_follows_the_system_or_the_saved_choice(page: Page, explorer: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    drawn = "document.getElementById('timeline').toDataURL()"
    page.emulate_media(color_scheme="dark")
    opened(page, address(explorer, RING))
    dark, dark_boxes = page.evaluate(background), page.evaluate(drawn)
    colours = page.get_by_label("Theme", exact=True)
    assert colours.input_value() == ""
    colours.select_option("light")
    light = page.evaluate(background)
    assert light != dark
    assert page.evaluate(drawn) != dark_boxes
    opened(page, address(explorer, RING))
    assert (colours.input_value(), page.evaluate(background)) == ("light", light)
    colours.select_option("")
    opened(page, address(explorer, RING))
    assert (colours.input_value(), page.evaluate(background)) == ("", dark)
    page.emulate_media(color_scheme="light")
    colours.select_option("dark")
    assert page.evaluate(background) == dark


@pytest.mark.parametrize("width_px", [360, 800])
def test_the_page_fits_a_phone_and_a_tablet_without_horizontal_scrolling(page: Page, explorer: str, width_px: int) -> None:
    page.set_viewport_size({"width": width_px, "height": 740})
    pinned = urlencode([("a", f"?scenario={DEEP}")])
    opened(page, f"{address(explorer, DEEP, 'training.recompute=full')}&{pinned}")
    wait_for_everything(page)
    for group in page.locator("summary").all():
        group.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width_px


# of texts that intersect by more than a pixel
_OVERLAPS = """(charts) => charts.flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
    .map(([b]) => `${a} and ${b}`));
})"""


@pytest.mark.parametrize("width_px", [360, *in_bulk(800, 1280)])
@pytest.mark.parametrize("scenario", [RING, *in_bulk("megatron-175b-3d-selene", "gpt3-175b-servers-selene")])
def test_labels_of_charts_do_not_overlap(page: Page, explorer: str, scenario: str, width_px: int) -> None:
    page.set_viewport_size({"width": width_px, "height": 900})
    opened(page, address(explorer, scenario))
    wait_for_everything(page)
    assert page.locator(".chart text").count() > 10
    assert page.locator(".chart").evaluate_all(_OVERLAPS) == []


def test_charts_write_short_numbers_like_all_pages(page: Page, explorer: str) -> None:
    page.goto(explorer)
    numbers = [0.01234, 0.9996, 9.996, 41.23, 99.96, 1_234.4, 9_994.0, 9_996.0, 308_351.0, 999_600.0, 1.531e12]
    texts = page.evaluate(
        "async (numbers) => { const { short } = await import('./charts.js'); return numbers.map(short); }", numbers
    )
    assert texts == [format_short(number) for number in numbers]


def test_markup_in_names_is_escaped(page: Page, explorer: str) -> None:
    opened(page, address(explorer, RING, "name=<img src=x onerror=alert(1)>", "model.name=<b>bold", "cluster.name=<script>"))
    assert "<b>bold on 32" in page.inner_text("#headline")
    assert page.locator("#answer img, #answer b:text('bold')").count() == 0
    assert page.title().endswith("<img src=x onerror=alert(1)>")
