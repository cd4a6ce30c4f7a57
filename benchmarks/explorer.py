"""How long the explorer takes to follow a change: the server's response, and until the browser has drawn it.

Prints the median and the 95th percentile, on loopback, of the response to random moves of all controls in several scenarios, of
the curves around them, and until a move of a slider is drawn in each of three scenarios.
Run: python benchmarks/explorer.py
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

CHANGES = 100
MOVED = ("llama-2-7b-fsdp-a100", "mixtral-8x7b-experts-h100", "megatron-175b-3d-selene", "llama-3-8b-long-context-h100",
         "bert-large-power-sgd-10gbe", "resnet50-ring-p100", "resnet50-servers-p100", "gpt3-1.3b-diloco-wan")  # fmt: skip
MOVES = 200
SCENARIOS = ("resnet50-ring-p100", "resnet50-servers-p100", "megatron-175b-3d-selene")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# changes a slider by one, as an arrow key does, and waits until that change's forecast has been drawn; milliseconds
_CHANGE = """([id, by]) => new Promise((done) => {
  const slider = document.getElementById(id);
  const begin = performance.now();
  const watch = new MutationObserver(() => {
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
  });
  watch.observe(document.body, {attributeFilter: ['data-shown']});
  slider.valueAsNumber += by;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  slider.dispatchEvent(new Event('change', {bubbles: true}));
})"""
# Sliders and directions: no state occurs twice, since a repeated one would come from a cache.
_SLIDERS = (
    ("control-cluster-network-bandwidth", -1),
    ("control-cluster-network-latency", 1),
    ("control-cluster-node-link-bandwidth", -1),
)


def main() -> None:
    """Prints medians and 95th percentiles of each scenario."""
    command = [sys.executable, "-m", "scaleproof", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        where = process.stdout.readline().partition("?")[0]
        try:
            moves_ms, curves_ms = moved_ms(where)
            print_times("random moves in all scenarios: response of the server", moves_ms)
            print_times("curves around them", curves_ms)
            for name, times_ms in changes_ms(where):
                print_times(name, times_ms)
        finally:
            process.terminate()


def print_times(name: str, times_ms: list[float]) -> None:
    """Prints a row of the table."""
    p95 = statistics.quantiles(times_ms, n=20)[-1]
    print(f"{name:<60} median {statistics.median(times_ms):6.1f} ms, 95th percentile {p95:6.1f} ms of {len(times_ms)}")


def moved_ms(where: str) -> tuple[list[float], list[float]]:
    """Milliseconds of first estimates after random moves of the controls, and of the curves around each beginning."""
    random.seed(0)
    moves_ms, curves_ms = [], []
    for scenario in MOVED:
        begin = requested(where, scenario, [])
        controls = [control for group in begin["controls"] for control in group["controls"]]
        started_s = time.perf_counter()
        requested(where, scenario, [("look", "curves")])
        curves_ms.append(1e3 * (time.perf_counter() - started_s))
        for _ in range(MOVES // len(MOVED)):
            move = random_move(random.choice(controls))
            started_s = time.perf_counter()
            requested(where, scenario, [*move, ("look", "first")])
            moves_ms.append(1e3 * (time.perf_counter() - started_s))
    return moves_ms, curves_ms


def random_move(control: dict[str, Any]) -> list[tuple[str, str]]:
    """A query's part for a random position of a control."""
    pick = random.choice
    if control["kind"] == "gpus":
        return [("gpus", str(pick(control["counts"])))]
    if "texts" in control:
        return [("set", f"{control['field']}={pick(control['texts'])}")]
    return [("set", one) for one in pick(control["options"])["sets"]] if "options" in control else []


def requested(where: str, scenario: str, parts: list[tuple[str, str]]) -> dict[str, Any]:
    """The server's response."""
    response: dict[str, Any] = json.load(urlopen(f"{where}api/answer?{urlencode([('scenario', scenario), *parts])}"))
    return response


def changes_ms(where: str) -> list[tuple[str, list[float]]]:
    """Milliseconds from a slider's move until the forecast is drawn, by scenario and for all."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        page = chromium.new_page()
        found = [(f"{one}: drawn after a change", drawn_ms(page, f"{where}?scenario={one}")) for one in SCENARIOS]
        chromium.close()
    return [*found, ("all changes", [ms for _, times_ms in found for ms in times_ms])]


def drawn_ms(page: Page, address: str) -> list[float]:
    """Milliseconds from each move of a slider until its forecast has been drawn."""
    page.goto(address)
    page.wait_for_selector("#answer[aria-busy=false]")
    times_ms = []
    for number in range(CHANGES):
        times_ms.append(page.evaluate(_CHANGE, list(_SLIDERS[number % len(_SLIDERS)])))
        # the pause of a user between two moves
        page.wait_for_timeout(50)
    return times_ms


if __name__ == "__main__":
    main()
